#!/bin/bash
# Runs every test against the engine that answers, and looks for what they left.
# "make test" gets an engine first, see engine.sh.
source "$(dirname "$0")/lib.sh"
cd "$repo"

need_go
need gcc gcc libc6-dev # the race detector needs cgo
scripts/image.sh all

# ours prints what of ours is on the engine, one a line, but for the agent and
# what holds it: they stay for the next sandbox.
ours() {
	local filter=label=dev.capybara.sandbox=1 role='{{.Label "dev.capybara.sandbox.role"}}'
	{
		docker ps -a --filter "$filter" --format "$role container {{.Names}}"
		docker network ls --filter "$filter" --format "$role network {{.Name}}"
		docker volume ls --filter "$filter" --format "$role volume {{.Name}}"
	} | sed -n '/^agent /!s/^[^ ]* //p'
}

before=$(ours)
begin=$SECONDS
status=0
REQUIRE_DOCKER=1 go test -race -timeout 30m "$@" ./... || status=$?
leaked=$(comm -13 <(sort <<<"$before") <(ours | sort))
if [ -n "$leaked" ]; then
	say "the tests left on the engine:"
	printf '%s\n' "$leaked" >&2
	status=1
fi
[ $status = 0 ] || die "the tests failed after $(took "$begin")"
