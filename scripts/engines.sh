#!/bin/bash
# Runs the conformance suite on the Docker Engines of newer Debian releases.
#
#   engines.sh [SUITE...]     default: trixie (Docker 26) and forky (Docker 28)
#
# Each engine runs from a root directory of its own, made by debootstrap and kept
# below ${XDG_CACHE_HOME:-~/.cache}/capyrun, in mount and network namespaces of
# its own: it shares nothing with this machine's engine but the kernel.
source "$(dirname "$0")/lib.sh"

mirror=http://deb.debian.org/debian
cache=${XDG_CACHE_HOME:-$HOME/.cache}/capyrun/engines

# make_root SUITE installs the engine of a release.
make_root() {
	local suite=$1 root=$cache/$1 begin=$SECONDS scripts=/usr/share/debootstrap/scripts
	[ ! -e "$root/usr/sbin/dockerd" ] || return 0
	need debootstrap debootstrap
	mkdir -p "$cache"
	# An older debootstrap does not know the newest releases, which are all made alike.
	[ -e "$scripts/$suite" ] || as_root ln -s sid "$scripts/$suite"
	say "installing Debian $suite's Docker Engine below $cache, once"
	as_root rm -rf --one-file-system "$root.new" "$root"
	as_root debootstrap --variant=minbase --include=docker.io,iptables,iproute2,ca-certificates \
		"$suite" "$root.new" "$mirror" >"$cache/$suite.log" 2>&1 || {
		tail -n 20 "$cache/$suite.log" >&2
		die "debootstrap failed"
	}
	as_root mv "$root.new" "$root"
	say "installed it in $(took "$begin")"
}

# start_as_root ROOT GROUP LOG starts the engine of a root directory. Its process
# id is that of the process that becomes dockerd.
start_as_root() {
	local root=$1 group=$2 log=$3
	mkdir -p "$root/old" "$root/data" "$root/sock"
	setsid unshare --mount --net bash -euc '
		mount --make-rprivate /
		mount --bind "$1" "$1"
		mount -t proc proc "$1/proc"
		mount --rbind /sys "$1/sys"
		mount --rbind /dev "$1/dev"
		mount -t tmpfs tmpfs "$1/run"
		cd "$1"
		pivot_root . old
		umount -l /old
		ip link set lo up
		groupadd -f -g "$2" engine
		exec dockerd --group "$2" --data-root /data --pidfile /run/dockerd.pid --host unix:///sock/docker.sock
	' engine "$root" "$group" >"$log" 2>&1 </dev/null &
	echo $! >"$root/pid"
}

# stop_as_root ROOT ends it; its mounts and networks end with its namespaces.
stop_as_root() {
	local root=$1 pid
	pid=$(cat "$root/pid" 2>/dev/null) || return 0
	kill -TERM "$pid" 2>/dev/null || true
	for _ in $(seq 150); do
		kill -0 "$pid" 2>/dev/null || break
		sleep 0.2
	done
	kill -KILL "$pid" 2>/dev/null || true
	rm -rf --one-file-system "$root/pid" "$root/data" "$root/sock"
}

run() {
	local suite=$1 log=$cache/$1.engine.log begin version=
	root=$cache/$suite # not local: the trap outlives this function
	make_root "$suite"
	export DOCKER_HOST=unix://$root/sock/docker.sock
	trap 'as_root bash "$0" stop-as-root "$root"' EXIT
	as_root bash "$0" start-as-root "$root" "$(id -g)" "$log"
	for _ in $(seq 150); do
		version=$(timeout 10 docker version --format '{{.Server.Version}}, API {{.Server.APIVersion}}' 2>/dev/null) && break
		sleep 0.2
	done
	[ -n "$version" ] || {
		tail -n 15 "$log" >&2
		die "the engine of $suite does not start"
	}
	say "Docker Engine $version, of Debian $suite"
	begin=$SECONDS
	"$repo/scripts/image.sh" debian:bookworm-slim capyrun-test-busybox
	REQUIRE_DOCKER=1 go test -count=1 -timeout 20m -run TestConformance ./docker
	say "Docker Engine $version conforms, in $(took "$begin")"
}

case ${1:-} in
start-as-root) start_as_root "$2" "$3" "$4" ;;
stop-as-root) stop_as_root "$2" ;;
*)
	cd "$repo"
	need_go
	need docker docker-cli
	[ $# -gt 0 ] || set -- trixie forky
	for suite in "$@"; do
		# A process of its own, so that its trap ends one engine before the next begins.
		(run "$suite")
	done
	;;
esac
