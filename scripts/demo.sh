#!/bin/bash
# Builds capyrun and runs a workflow with it. "make demo" gets an engine first.
source "$(dirname "$0")/lib.sh"
cd "$repo"

scripts/image.sh
begin=$SECONDS
make --no-print-directory build
say "built bin/capyrun in $(took "$begin")"
say "running: bin/capyrun run workflows/hello.star"
begin=$SECONDS
bin/capyrun run workflows/hello.star
say "done in $(took "$begin"); the sandbox is gone again: $(bin/capyrun ps -q | wc -l) left"
say "next: bin/capyrun run --help, and the other files in workflows/"
