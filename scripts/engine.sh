#!/bin/bash
# Gets a Docker Engine and takes it away again.
#
#   engine.sh ensure       use the engine that answers, or install and start one
#   engine.sh stop         end the engine that "ensure" started, and only that
#   engine.sh with CMD...  ensure, run CMD, and stop what was started for it
#
# An engine that was running before is never touched.
source "$(dirname "$0")/lib.sh"

state=/run/capyrun-engine # owned by root: pid, start time and what the machine looked like before
log=$state/dockerd.log

answers() { command -v docker >/dev/null && timeout 10 docker version --format '{{.Server.Version}}' 2>/dev/null; }

endpoint() { printf '%s' "${DOCKER_HOST:-unix:///var/run/docker.sock}"; }

# started_at PID prints a process's start time, which tells it from a later one of the same id.
started_at() { sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | cut -d' ' -f20; }

# ours prints the pid of the engine that "ensure" started, if it still runs.
ours() {
	local pid start
	read -r pid start 2>/dev/null <"$state/process" && [ "$(started_at "$pid")" = "$start" ] && printf '%s' "$pid"
}

# alive reports whether what "ensure" started still runs.
alive() {
	ours >/dev/null || { [ -e "$state/units" ] && systemctl is-active --quiet docker.service; }
}

ensure() {
	local version
	[ -z "${DOCKER_HOST:-}" ] || need docker docker.io
	if version=$(answers); then
		say "Docker Engine $version answers at $(endpoint)"
		return
	fi
	[ -z "${DOCKER_HOST:-}" ] ||
		die "no engine answers at DOCKER_HOST=$DOCKER_HOST; unset it to have one started here"
	if [ -S /var/run/docker.sock ] && [ ! -w /var/run/docker.sock ] &&
		{ ! command -v sudo || sudo timeout 10 docker version; } >/dev/null 2>&1; then
		die "a Docker Engine runs here, but $(id -un) may not use it: run as root, or 'sudo usermod -aG docker $(id -un)' and log in again"
	fi
	# Before the installation: where there is systemd it starts the service.
	as_root bash "$0" remember
	need dockerd docker.io iptables
	need docker docker-cli # newer releases have the client in a package of its own
	need iptables iptables
	need ip iproute2 # to take the engine's bridges away again
	start
}

start() {
	local begin=$SECONDS version
	as_root bash "$0" start-as-root "$(id -gn)" || die "the engine could not be started"
	version=$(answers) || die "the engine runs, but does not answer $(id -un) at $(endpoint)"
	say "started Docker Engine $version in $(took "$begin")"
}

# The parts from here to the end of restore_machine run as root.

# remember notes what the engine is about to change and does not change back.
remember() {
	local unit
	rm -rf "$state"
	mkdir -p "$state"
	if ! iptables-save 2>/dev/null | grep -q DOCKER; then
		iptables-save 2>/dev/null | sed -n '/^\*filter/,/^COMMIT/s/^:FORWARD \([A-Z]*\).*/\1/p' >"$state/forward-policy"
	fi
	ip link show docker0 >/dev/null 2>&1 || touch "$state/no-docker0"
	cat /proc/sys/net/ipv4/ip_forward >"$state/ip_forward"
	if [ -d /run/systemd/system ]; then
		for unit in docker.service docker.socket containerd.service; do
			systemctl is-active --quiet "$unit" || printf '%s\n' "$unit"
		done >"$state/inactive-units"
	fi
}

start_as_root() {
	local group=$1
	if [ -e "$state/inactive-units" ] && systemctl cat docker.service >/dev/null 2>&1; then
		mv "$state/inactive-units" "$state/units"
		systemctl start docker.service || true # the wait below tells
	else
		mount_cgroups
		# A session of its own: Ctrl-C in this terminal must not end it before it is stopped in order.
		setsid dockerd --group "$group" --pidfile "$state/dockerd.pid" --exec-root "$state/exec" >"$log" 2>&1 </dev/null &
		printf '%s %s\n' "$!" "$(started_at $!)" >"$state/process"
	fi
	for _ in $(seq 300); do
		timeout 10 docker version >/dev/null 2>&1 && return
		[ ! -e "$state/process" ] || ours >/dev/null || break
		sleep 0.2
	done
	tail -n 15 "$log" 2>/dev/null || journalctl -u docker.service -n 15 --no-pager || true
	stop_as_root
	return 1
} >&2

mount_cgroups() {
	grep -q ' - cgroup2\? ' /proc/self/mountinfo && return
	mount -t cgroup2 none /sys/fs/cgroup
	touch "$state/mounted-cgroups"
}

stop_as_root() {
	local pid bridges=() waited=0
	[ -d "$state" ] || return 0
	# The engine leaves the bridges of its networks behind.
	mapfile -t bridges < <(timeout 10 docker network ls -q --filter driver=bridge 2>/dev/null | sed 's/^/br-/')
	if pid=$(ours); then
		kill -TERM "$pid"
		while ours >/dev/null; do
			# dockerd gives its containers 15 seconds.
			[ $((waited += 1)) -le 150 ] || {
				say "the engine (process $pid) does not end after 30s: killing it"
				kill -KILL "$pid"
				waited=0
			}
			sleep 0.2
		done
	elif [ -e "$state/units" ]; then
		xargs -r systemctl stop <"$state/units"
	fi
	end_leftovers
	restore_machine "${bridges[@]}"
	rm -rf "$state"
}

# end_leftovers ends containerd and its shims where the engine left them, and
# unmounts what is below our own exec-root.
end_leftovers() {
	local proc cmdline mounted
	for proc in /proc/[0-9]*; do
		cmdline=$({ tr '\0' ' ' <"$proc/cmdline"; } 2>/dev/null) || continue
		case $cmdline in
		*containerd*"$state/exec/"*) kill -KILL "${proc#/proc/}" 2>/dev/null || true ;;
		esac
	done
	awk -v below="$state/exec/" 'index($5, below) == 1 { print $5 }' /proc/self/mountinfo | sort -r |
		while read -r mounted; do umount -l "$mounted"; done
	if [ -e "$state/mounted-cgroups" ]; then
		umount -l /sys/fs/cgroup
	else
		# Only an empty one can be removed.
		rmdir /sys/fs/cgroup/docker /sys/fs/cgroup/*/docker 2>/dev/null || true
	fi
}

restore_machine() {
	local tables table bridge policy ours=(-e DOCKER -e docker0)
	for bridge in "$@"; do ours+=(-e "$bridge"); done
	if [ -e "$state/forward-policy" ]; then
		for tables in iptables ip6tables; do
			for table in filter nat raw; do
				"$tables-save" -t "$table" 2>/dev/null | grep -q DOCKER || continue
				"$tables-save" -t "$table" | grep -v "${ours[@]}" | "$tables-restore" -T "$table"
			done
		done
		policy=$(cat "$state/forward-policy")
		iptables -P FORWARD "${policy:-ACCEPT}"
	fi
	for bridge in "$@"; do
		ip link delete "$bridge" 2>/dev/null || true
	done
	if [ -e "$state/no-docker0" ]; then
		ip link delete docker0 2>/dev/null || true
	fi
	cat "$state/ip_forward" >/proc/sys/net/ipv4/ip_forward
}

stop() {
	local begin=$SECONDS
	if [ ! -d "$state" ]; then
		say "no engine of ours runs"
		return
	fi
	as_root bash "$0" stop-as-root
	say "stopped the engine that was started here, in $(took "$begin"); its images stay in /var/lib/docker"
}

with() {
	if ! alive; then
		[ ! -d "$state" ] || as_root bash "$0" stop-as-root # left by a crash
		trap '[ ! -d "$state" ] || stop' EXIT
	fi
	ensure
	"$@"
}

case ${1:-} in
ensure) ensure ;;
stop) stop ;;
with) shift && with "$@" ;;
remember) remember ;;
start-as-root) start_as_root "$2" ;;
stop-as-root) stop_as_root ;;
*) die "usage: $0 ensure | stop | with COMMAND..." ;;
esac
