package provider

import (
	"io/fs"
	"path"
	"strings"
	"time"
)

// Places in a sandbox.
const (
	Workspace = "/workspace" // the working directory, a volume of uid 1000
	TempDir   = "/tmp"       // a tmpfs
	SkillsDir = "/skills"    // read-only for commands
)

// MaxPath is the longest path that is accepted, in bytes.
const MaxPath = 4096

// ReadOptions bound a read.
type ReadOptions struct {
	// Offset is where to begin, in bytes. Beyond the end there is nothing.
	Offset int64
	// Max is how much to read at most. 0: [DefaultMaxRead] for ReadFile, no
	// bound for OpenFile.
	Max int64
}

// Validate reports an offset or a bound that cannot be accepted.
func (o ReadOptions) Validate() error {
	if o.Offset < 0 {
		return &InvalidError{Field: "offset", Value: itoa(o.Offset), Reason: "must not be negative"}
	}
	if o.Max < 0 {
		return &InvalidError{Field: "max_bytes", Value: itoa(o.Max), Reason: "must not be negative"}
	}
	return nil
}

// FileData is the content of a file, or of a part of it.
type FileData struct {
	Data []byte
	// Truncated says that the file goes on after Data.
	Truncated bool
	// Size is the size of the whole file at the time of reading, in bytes.
	Size int64
}

// WriteOptions say how to write a file.
type WriteOptions struct {
	// Mode are the permission bits. 0: those of the replaced file, else 0644.
	Mode fs.FileMode
	// Append adds to the file instead of replacing it; it is not atomic.
	Append bool
}

// Validate reports a mode that is more than permission bits.
func (o WriteOptions) Validate() error {
	if o.Mode&^fs.ModePerm != 0 {
		return &InvalidError{Field: "mode", Value: o.Mode.String(), Reason: "must be permission bits, 0o000 to 0o777"}
	}
	return nil
}

// FileKind is what a path names.
type FileKind string

const (
	KindFile      FileKind = "file"
	KindDirectory FileKind = "directory"
	KindSymlink   FileKind = "symlink"
	KindOther     FileKind = "other" // device, socket, FIFO
)

// FileInfo describes a file in a sandbox.
type FileInfo struct {
	// Path is absolute from Stat, relative to the directory from ReadDir.
	Path    string      `json:"path"`
	Kind    FileKind    `json:"kind"`
	Size    int64       `json:"size"`
	Mode    fs.FileMode `json:"mode"` // permission bits
	ModTime time.Time   `json:"mtime"`
	Target  string      `json:"target,omitempty"` // of a symlink, as it is written
}

// CleanPath returns the absolute form of a path to read, or an [*InvalidError]
// that names field.
func CleanPath(field, p string) (string, error) {
	switch {
	case p == "":
		return "", &InvalidError{Field: field, Value: p, Reason: "must not be empty"}
	case strings.IndexByte(p, 0) >= 0:
		return "", &InvalidError{Field: field, Value: p, Reason: "must not contain NUL"}
	case len(p) > MaxPath:
		return "", &InvalidError{Field: field, Value: p[:64] + "...", Reason: "must be at most 4096 bytes"}
	}
	if !path.IsAbs(p) {
		p = Workspace + "/" + p
	}
	return path.Clean(p), nil
}

// CleanWritePath is [CleanPath] for a path that will be changed: it must lie in
// one of the writable places. The places themselves can only be listed and
// filled, so strictly is true where the path must lie below them.
func CleanWritePath(field, p string, strictly bool) (string, error) {
	clean, err := CleanPath(field, p)
	if err != nil {
		return "", err
	}
	for _, place := range []string{Workspace, TempDir, SkillsDir} {
		if strings.HasPrefix(clean, place+"/") || !strictly && clean == place {
			return clean, nil
		}
		if clean == place {
			return "", &InvalidError{Field: field, Value: p, Reason: "must be below " + place + ", not " + place + " itself"}
		}
	}
	return "", &InvalidError{Field: field, Value: p, Reason: "must stay in /workspace, /tmp or /skills"}
}

// InSkills reports whether a clean path lies in [SkillsDir], where only the
// provider may write.
func InSkills(clean string) bool {
	return clean == SkillsDir || strings.HasPrefix(clean, SkillsDir+"/")
}
