#!/bin/bash
# Gets images onto the engine, where they are not there yet.
#
#   image.sh [NAME...]     default: debian:bookworm-slim
#   image.sh all           the default image and those of the tests
#
# debian:bookworm-slim       the default image: pulled, or built where no registry answers
# capyrun-build:bookworm     gcc, make and python3, for the build-and-test workflow
# capyrun-test-busybox       static busybox and nothing else, for the tests
#
# Built images are kept as tar files below ${XDG_CACHE_HOME:-~/.cache}/capyrun,
# so that they come back in seconds after a prune.
source "$(dirname "$0")/lib.sh"

suite=bookworm
mirror=http://deb.debian.org/debian
cache=${XDG_CACHE_HOME:-$HOME/.cache}/capyrun
path=PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin

work= # where a recipe works
clean() { [ -z "$work" ] || as_root rm -rf "$work"; }
trap clean EXIT

get() {
	local name=$1 begin=$SECONDS
	[[ $name = *:* ]] || name+=:latest
	if docker image inspect "$name" >/dev/null 2>&1; then
		say "image $name is there"
		return
	fi
	case $name in
	debian:bookworm-slim)
		if pull "$name"; then
			say "pulled $name in $(took "$begin")"
			return
		fi
		from_cache "$name" debian ca-certificates
		;;
	capyrun-build:bookworm)
		from_cache "$name" debian ca-certificates,gcc,libc6-dev,make,python3
		;;
	capyrun-test-busybox:latest)
		from_cache "$name" busybox
		;;
	*) die "no recipe for image $name: see the head of $0" ;;
	esac
	say "image $name made here in $(took "$begin")"
}

# pull waits two minutes at most: a registry behind a dropping firewall does not refuse, it is silent.
pull() {
	local answer
	say "pulling $1"
	answer=$(timeout 120 docker pull -q "$1" 2>&1 >/dev/null) && return
	say "no registry gave it${answer:+: ${answer##*: }}"
	return 1
}

# from_cache NAME RECIPE [PACKAGES] imports the recipe's tar file as an image,
# and makes it first where it is missing or damaged.
from_cache() {
	local name=$1 recipe=$2 packages=${3:-} key tar
	# The key changes with the recipe, so that an old file is never used for a new one.
	key=$(printf '%s' "$packages $suite $(declare -f "$recipe")" | sha256sum | cut -c1-12)
	tar=$cache/images/$(printf '%s' "$name" | tr ':/' '--')-$(dpkg --print-architecture)-$key.tar.gz
	mkdir -p "$cache/images"
	# Several test processes may want the same image at once.
	exec 9>"$cache/images/.lock"
	flock 9
	docker image inspect "$name" >/dev/null 2>&1 && return
	if ! gzip -t "$tar" 2>/dev/null; then
		say "building $name from Debian's packages, once"
		work=$(mktemp -d)
		rm -f "$tar" "$tar".tmp.*
		("$recipe" "$tar.tmp.$$" "$packages") # a subshell: it may change directory
		mv "$tar.tmp.$$" "$tar"
		clean
	fi
	docker import --change "ENV $path" --change "CMD [\"$(default_command "$recipe")\"]" "$tar" "$name" >/dev/null
	flock -u 9
}

default_command() { if [ "$1" = busybox ]; then echo sh; else echo bash; fi; }

# The recipes rely on "set -e": bash ignores it in a function that is called in a condition.

# debian FILE PACKAGES writes a minimal Debian with the packages, without the
# manuals, translations and package lists that the official slim image lacks too.
debian() {
	local file=$1 packages=$2
	need debootstrap debootstrap
	[ -e /usr/share/keyrings/debian-archive-keyring.gpg ] || install_packages debian-archive-keyring
	mkdir -p "$cache/debs"
	if ! as_root debootstrap --variant=minbase --include="$packages" --cache-dir="$cache/debs" \
		"$suite" "$work/root" "$mirror" >"$work/log" 2>&1; then
		tail -n 20 "$work/log" >&2
		as_root rm -rf "$cache/debs" # a damaged package would fail it again
		die "debootstrap failed"
	fi
	# Of the documentation the copyright files stay: the licences ask for it.
	as_root tar -C "$work/root" --numeric-owner --one-file-system --sort=name \
		--exclude='./var/lib/apt/lists/*' --exclude='./var/cache/apt/*' --exclude='./var/cache/debconf/*-old' \
		--exclude='./var/log/*' --exclude='./usr/share/man/*' --exclude='./usr/share/info/*' \
		--exclude='./usr/share/locale/*' --exclude='./usr/share/lintian/*' --exclude='./usr/share/doc/*/changelog*' \
		--exclude='./usr/share/doc/*/README*' --exclude='./usr/share/doc/*/NEWS*' --exclude='./dev/*' --exclude='./proc/*' \
		-c . | gzip -1 >"$file"
}

# busybox FILE writes /bin/busybox and a link for each of its applets.
busybox() {
	local file=$1 applet
	cd "$work"
	# Unpacked and not installed: the package conflicts with busybox, which a machine may need.
	if ! apt-get download busybox-static >log 2>&1; then
		as_root apt-get update >log 2>&1 && apt-get download busybox-static >log 2>&1 || {
			cat log >&2
			die "could not download busybox-static"
		}
	fi
	dpkg-deb -x busybox-static_*.deb package
	mkdir -p root/bin
	find package -name busybox -type f -perm -u+x -exec cp {} root/bin/ \;
	for applet in $(root/bin/busybox --list); do
		[ "$applet" = busybox ] || ln -s busybox "root/bin/$applet"
	done
	tar -C root --owner=0 --group=0 --sort=name -c . | gzip -1 >"$file"
}

names=("$@")
[ $# -gt 0 ] || names=(debian:bookworm-slim)
[ "${names[0]}" != all ] || names=(debian:bookworm-slim capyrun-test-busybox:latest capyrun-build:bookworm)
command -v docker >/dev/null && docker version >/dev/null 2>&1 || die "no Docker Engine answers: run scripts/engine.sh ensure"
for name in "${names[@]}"; do get "$name"; done
