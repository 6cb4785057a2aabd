#!/bin/bash
# Everything that can be checked without an engine.
source "$(dirname "$0")/lib.sh"
cd "$repo"
need_go

failed=()
check() {
	local title=$1 begin=$SECONDS
	shift
	if "$@"; then
		say "ok    $title ($(took "$begin"))"
	else
		say "FAIL  $title"
		failed+=("$title")
	fi
}

formatted() {
	local files
	files=$(gofmt -l . 2>&1)
	[ -z "$files" ] || { printf 'not formatted by gofmt:\n%s\n' "$files" && return 1; }
}

# generated runs go generate in a copy, so that what is not committed yet is compared too and nothing is changed.
generated() {
	grep -rqs '^//go:generate' --include='*.go' . || return 0
	local copy status=0
	copy=$(mktemp -d)
	cp -a . "$copy" && (cd "$copy" && go generate ./...) && diff -rq --exclude=.git --exclude=bin --exclude=build . "$copy" || status=1
	rm -rf "$copy"
	return $status
}

scripts_parse() {
	local script
	for script in scripts/*.sh .ci/run; do bash -n "$script" || return 1; done
}

check "gofmt" formatted
check "scripts parse" scripts_parse
check "go vet" go vet ./...
check "staticcheck" go run honnef.co/go/tools/cmd/staticcheck@v0.8.2 ./...
check "go.mod and go.sum are tidy" go mod tidy -diff
check "generated files are current" generated
check "import rules" go test ./internal/archtest
check "examples in the documents" go test -run 'Blocks|Compiles|Parse' ./internal/doctest
[ ${#failed[@]} = 0 ] || die "failed: $(printf '%s; ' "${failed[@]}")"
