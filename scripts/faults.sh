#!/bin/bash
# Runs the fault suite COUNT times: real faults, with the race detector, on a
# real engine. "make faults" gets an engine first, see engine.sh. It ends at the
# first round that fails. The tests with a hundred sandboxes or runners have as
# many in the first round, and fifteen in the others.
source "$(dirname "$0")/lib.sh"
cd "$repo"

need_go
need gcc gcc libc6-dev # the race detector needs cgo
scripts/image.sh capyrun-test-busybox
scripts/image.sh debian:bookworm-slim
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for package in docker agent; do go test -race -c -o "$work/$package.test" "./$package"; done

# round runs the fault tests of one package in its folder. Their output is shown
# where one failed. Most of them wait most of the time, so several run at once.
round() { # PACKAGE PATTERN
	(cd "$1" && REQUIRE_DOCKER=1 "$work/$1.test" -test.v -test.timeout 15m -test.parallel 4 "${short[@]}" -test.run "$2" >"$work/log" 2>&1) && return
	cat "$work/log" >&2
	return 1
}

short=()
count=${COUNT:-1}
for n in $(seq "$count"); do
	begin=$SECONDS
	round docker '^TestFault|^TestConformance$/^(Create|Limits|Output|Stdin|End|Kill|Life)$' &&
		round agent '^Test(AgentKilled|VanishedClient|Reconnect|UnresponsiveAgent|ConnectionCut|Paused|Hostile|NoAgent|ForkBomb|RandomTrees|WriteFileInterrupted|NoSpace)' ||
		die "fault suite: round $n of $count failed after $(took "$begin")"
	say "fault suite: round $n of $count passed in $(took "$begin")"
	short=(-test.short)
done
