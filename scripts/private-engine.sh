#!/bin/bash
# Runs a Docker Engine of its own for tests that stop and kill it. Run as root.
#
#   private-engine.sh DIR GROUP [DOCKERD-FLAG...]
#
# Everything is below DIR, the engine listens at DIR/docker.sock, which GROUP may
# use. Commands come on standard input, one a line, and each is answered by a line
# that begins with "ok" or "failed":
#
#   start  starts the engine, without waiting until it answers
#   term   stops it in order, and waits for its end
#   kill   kills it, and waits for its end
#   hang   stops the engine's process, so that it accepts connections and says nothing
#   cont   lets it go on
#   alive  looks whether its process is there
#
# At the end of standard input everything is taken away: so nothing is left
# either where the test has been killed. containerd outlives the engine, as it
# does where both are services.
#
# All of it sees its own mounts, and DIR/plugins as the directory where an engine
# looks for plugins: one machine-wide directory would give a test's plugin to every
# engine, and an engine that has seen a plugin goes on asking it.
set -uo pipefail

if [ -z "${PRIVATE_ENGINE_MOUNTS-}" ]; then
	exec env PRIVATE_ENGINE_MOUNTS=1 unshare --mount bash "$0" "$@"
fi
mkdir -p "$1/plugins" /run/docker/plugins
mount --bind "$1/plugins" /run/docker/plugins || exit 1

dir=$1 group=$2
shift 2
flags=("$@")
engine='' containerd=''

alive() { [ -n "$1" ] && kill -0 "$1" 2>/dev/null; }

start() {
	if ! alive "$containerd"; then
		mkdir -p "$dir/containerd"
		cat >"$dir/containerd.toml" <<-TOML
			version = 2
			root = "$dir/containerd/root"
			state = "$dir/containerd/state"
			disabled_plugins = ["io.containerd.grpc.v1.cri"]
			[debug]
			  level = "warn"
			[grpc]
			  address = "$dir/containerd.sock"
		TOML
		containerd --config "$dir/containerd.toml" </dev/null >>"$dir/log" 2>&1 &
		containerd=$!
		for _ in $(seq 300); do
			[ ! -S "$dir/containerd.sock" ] || break
			alive "$containerd" || return 1
			sleep 0.05
		done
	fi
	echo '{}' >"$dir/daemon.json" # not the machine's
	dockerd --host "unix://$dir/docker.sock" --group "$group" --containerd "$dir/containerd.sock" \
		--data-root "$dir/data" --exec-root "$dir/exec" --pidfile "$dir/dockerd.pid" --config-file "$dir/daemon.json" \
		--bridge none --iptables=false --ip-forward=false "${flags[@]}" </dev/null >>"$dir/log" 2>&1 &
	engine=$!
}

end() { # SIGNAL
	alive "$engine" || return 0
	kill -CONT "$engine"
	kill "-$1" "$engine"
	wait "$engine"
	engine=''
}

hang() {
	kill -STOP "$engine"
	# Its threads go on for a moment.
	while [ -n "$(grep -Ls '^State:.T' "/proc/$engine/task"/*/status)" ]; do sleep 0.01; done
}

clean() {
	local id pid mounted
	# Orderly, so that the engine unmounts what it has mounted.
	if alive "$engine"; then
		kill -CONT "$engine"
		kill -TERM "$engine"
		for _ in $(seq 200); do
			alive "$engine" || break
			sleep 0.1
		done
		end KILL
	fi
	# The sandboxes of a killed engine.
	for id in "$dir"/data/containers/*; do
		id=${id##*/}
		[ "$id" != '*' ] || continue
		for pid in $(grep -ls "$id" /proc/[0-9]*/cgroup | cut -d/ -f3); do kill -KILL "$pid"; done
	done
	for pid in $(grep -las -- "$dir/" /proc/[0-9]*/cmdline | cut -d/ -f3); do
		kill -KILL "$pid" # containerd, its shims, and what a runtime such as runsc runs outside of control groups
	done
	[ -z "$containerd" ] || wait "$containerd"
	for id in "$dir"/data/containers/*; do
		rmdir /sys/fs/cgroup/docker/"${id##*/}" /sys/fs/cgroup/*/docker/"${id##*/}"
	done
	awk -v below="$dir/" 'index($5, below) == 1 { print $5 }' /proc/self/mountinfo | sort -r |
		while read -r mounted; do umount -l "$mounted"; done
	rm -rf "$dir"
} 2>/dev/null

trap clean EXIT
trap '' INT TERM HUP PIPE # Ctrl-C ends the test, whose end ends this
while read -r command; do
	case $command in
	start) start ;;
	term) end TERM ;;
	kill) end KILL ;;
	hang) hang ;;
	cont) kill -CONT "$engine" ;;
	alive) alive "$engine" ;;
	*) false ;;
	esac && echo "ok $command" || echo "failed $command"
done 2>>"$dir/log"
