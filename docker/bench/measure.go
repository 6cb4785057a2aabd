package main

import (
	"fmt"
	"slices"
	"time"
)

// row is one line of the table. measure returns its other cells.
type row struct {
	what    string
	measure func() (string, error)
}

// pair is two ways of doing the same thing.
type pair struct {
	target float64 // the ratio of the times to reach
	rounds int
	block  int // how many times each way is measured before the other's turn
	ours   func(round int) error
	theirs func(round int) error
}

// compare is a row about the times that both ways of a pair take.
func (b *bench) compare(what string, p pair) row {
	return row{what, func() (string, error) {
		ours, theirs, err := b.inTurn(p)
		if err != nil {
			return "", err
		}
		return compared(ours, theirs, p.target), nil
	}}
}

// inTurn runs blocks of both ways in turn and returns the median times.
func (b *bench) inTurn(p pair) (ours, theirs time.Duration, err error) {
	var a, t []time.Duration
	for len(a) < p.rounds {
		if err := b.block(p.block, p.ours, &a); err != nil {
			return 0, 0, err
		}
		if err := b.block(p.block, p.theirs, &t); err != nil {
			return 0, 0, fmt.Errorf("beside it: %w", err)
		}
	}
	return median(a), median(t), nil
}

// block measures one way a few times after each other, as a script would do it.
// The first time in a block warms up and does not count; what is so costly that
// each block has it once is warm after the first block.
func (b *bench) block(times int, f func(int) error, all *[]time.Duration) error {
	time.Sleep(settle)
	if times > 1 || len(*all) == 0 {
		if _, err := b.timed(f, -1); err != nil {
			return err
		}
	}
	for range max(times, 1) {
		took, err := b.timed(f, len(*all))
		if err != nil {
			return err
		}
		*all = append(*all, took)
	}
	return nil
}

// sample measures what has nothing beside it.
func (b *bench) sample(times int, f func(round int) error) ([]time.Duration, error) {
	var all []time.Duration
	err := b.block(times, f, &all)
	return all, err
}

// settle lets what the last measurement has left to the engine come to its
// end: an exec's or a container's cleanup goes on for a while after the answer,
// and would be charged to whatever is measured next.
const settle = 100 * time.Millisecond

// timed times f, and then does what f left to be done outside of that.
func (b *bench) timed(f func(int) error, round int) (time.Duration, error) {
	begin := time.Now()
	err := f(round)
	took := time.Since(begin)
	for _, after := range b.after {
		after()
	}
	b.after = nil
	return took, err
}

func (b *bench) later(f func()) { b.after = append(b.after, f) }

func (b *bench) atEnd(f func()) { b.ends = append(b.ends, f) }

func median(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/2]
}

func ms(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e6 }

func compared(ours, theirs time.Duration, target float64) string {
	ratio := float64(ours) / float64(theirs)
	return fmt.Sprintf("%.2f ms | %.2f ms | %s | %s, %s", ms(ours), ms(theirs), ratioText(ratio), ratioText(target), verdict(ratio <= target))
}

// alone is the cells of a row that has nothing beside it.
func alone(figure, target string, reached bool) string {
	return fmt.Sprintf("%s | | | %s, %s", figure, target, verdict(reached))
}

func verdict(reached bool) string {
	if reached {
		return "reached"
	}
	return "**not reached**"
}

// ratioText writes small ratios as fractions: 1/29 says more than 0.034.
func ratioText(r float64) string {
	if r < 0.5 {
		return fmt.Sprintf("1/%.0f", 1/r)
	}
	return fmt.Sprintf("%.2f", r)
}
