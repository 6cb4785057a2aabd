package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/capybara-hq/capyrun/provider"
)

// family starts twenty processes that a deadline must end: plain children, ones
// in sessions of their own, and ones whose parents have left them.
const family = `
for i in 1 2 3 4 5 6 7 8; do sleep 98765 & done
for i in 1 2 3 4 5 6; do setsid sleep 98765 & done
for i in 1 2 3 4 5 6; do (setsid sleep 98765 &); done
echo all there
wait`

func (b *bench) deadlineRows() []row {
	return []row{{"from a deadline to the result, twenty processes dead", b.deadline}}
}

func (b *bench) deadline() (string, error) {
	const timeout = 2 * time.Second // for the family to be complete on a busy machine
	const target = 50 * time.Millisecond
	var over []time.Duration
	_, err := b.sample(max(5, b.rounds/6), func(round int) error {
		begin := time.Now()
		r, err := b.sb.Exec(b.ctx, provider.Command{Shell: family, Timeout: timeout})
		took := time.Since(begin)
		if err != nil {
			return err
		}
		if !r.TimedOut || !strings.Contains(string(r.Stdout), "all there") {
			return fmt.Errorf("not what was to be measured: timed out %v, %q", r.TimedOut, r.Stdout)
		}
		if round >= 0 {
			over = append(over, took-timeout)
		}
		r, err = b.sb.Exec(b.ctx, provider.Command{Shell: "cat /proc/[0-9]*/cmdline 2>/dev/null; true"})
		if err == nil && strings.Contains(string(r.Stdout), "sleep\x0098765") {
			err = errors.New("a process has survived")
		}
		return err
	})
	if err != nil {
		return "", err
	}
	p50 := median(over)
	return alone(fmt.Sprintf("%.1f ms, at worst %.1f ms, no survivor", ms(p50), ms(slices.Max(over))), "50 ms", p50 < target), nil
}
