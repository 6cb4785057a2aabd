# Shared by the scripts beside it; sourced, not run.

set -euo pipefail
repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

say() { printf '== %s\n' "$*" >&2; }

die() {
	printf '!! %s\n' "$*" >&2
	exit 1
}

# as_root CMD... runs a command as root.
as_root() {
	if [ "$(id -u)" = 0 ]; then
		"$@"
	elif command -v sudo >/dev/null; then
		sudo "$@"
	else
		die "this needs root and there is no sudo: run as root: $*"
	fi
}

# took SINCE prints the seconds since a value of $SECONDS.
took() { printf '%ss' "$((SECONDS - $1))"; }

# install_packages PACKAGE... installs Debian packages. The package lists are
# fetched only where the installation fails without: that is slow, and a fresh
# machine has none.
install_packages() {
	command -v apt-get >/dev/null ||
		die "this machine has no apt-get: install the equivalent of these Debian packages by hand: $*"
	local start=$SECONDS log
	log=$(mktemp)
	say "installing $*"
	local apt=(env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300)
	if ! as_root "${apt[@]}" install -y --no-install-recommends "$@" >"$log" 2>&1; then
		if ! as_root "${apt[@]}" update >"$log" 2>&1 ||
			! as_root "${apt[@]}" install -y --no-install-recommends "$@" >>"$log" 2>&1; then
			tail -n 20 "$log" >&2
			rm -f "$log"
			die "could not install $*"
		fi
	fi
	rm -f "$log"
	say "installed $* in $(took "$start")"
}

# need PROGRAM PACKAGE... installs the packages where the program is missing.
need() {
	local program=$1
	shift
	command -v "$program" >/dev/null || [ -x "/usr/sbin/$program" ] || install_packages "$@"
}

need_go() {
	command -v go >/dev/null || die "go is not in PATH: install Go 1.26 or later from https://go.dev/dl"
	# Without them the modules cannot be fetched.
	[ -e /etc/ssl/certs/ca-certificates.crt ] || [ ! -e /etc/debian_version ] || install_packages ca-certificates
}
