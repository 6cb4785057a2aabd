package main

import (
	"errors"
	"strings"

	"github.com/capybara-hq/capyrun/provider"
)

func (b *bench) fileRows() []row {
	content := strings.Repeat("0123456789abcdef", 64)
	check := func(data []byte, err error) error {
		if err == nil && string(data) != content {
			err = errors.New("other content")
		}
		return err
	}
	return []row{
		b.compare("write a file of 1 KiB against an engine exec of `cat`", pair{
			target: 1.0 / 20, rounds: b.rounds, block: 10,
			ours: func(int) error {
				return b.sb.WriteFile(b.ctx, "small", strings.NewReader(content), provider.WriteOptions{})
			},
			theirs: func(int) error {
				_, err := b.engineExec(b.id, strings.NewReader(content), "bash", "-c", "cat > /tmp/small")
				return err
			},
		}),
		b.compare("read it against an engine exec of `cat`", pair{
			target: 1.0 / 20, rounds: b.rounds, block: 10,
			ours: func(int) error {
				f, err := b.sb.ReadFile(b.ctx, "small", provider.ReadOptions{})
				if err != nil {
					return err
				}
				return check(f.Data, nil)
			},
			theirs: func(int) error { return check(b.engineExec(b.id, nil, "cat", "/tmp/small")) },
		}),
	}
}
