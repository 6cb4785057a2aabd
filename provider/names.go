package provider

import (
	"crypto/rand"
	"encoding/base32"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// LabelPrefix begins the keys of our own labels. They are the platform's, so
// that its other tools see our sandboxes.
const LabelPrefix = "dev.capybara."

// Keys of the labels on every resource of a sandbox.
const (
	LabelSandbox    = "dev.capybara.sandbox"             // always "1": the resource is ours
	LabelName       = "dev.capybara.sandbox.name"        // the sandbox that it belongs to
	LabelRole       = "dev.capybara.sandbox.role"        // see the Role constants
	LabelOwner      = "dev.capybara.sandbox.owner"       // an [Owner] as JSON
	LabelCreated    = "dev.capybara.sandbox.created"     // RFC 3339
	LabelEgress     = "dev.capybara.sandbox.egress"      // an [Egress]
	LabelAllowHosts = "dev.capybara.sandbox.allow-hosts" // a JSON list
	LabelKeep       = "dev.capybara.sandbox.keep"        // "1": outlives its owner
	LabelExpires    = "dev.capybara.sandbox.expires"     // RFC 3339: end of the time to live
	LabelInstance   = "dev.capybara.sandbox.instance"    // random, the same on all that one create made
	LabelUser       = "dev.capybara.sandbox.user-labels" // the user's own labels, as JSON
)

// Values of [LabelRole].
const (
	RoleSandbox       = "sandbox"
	RoleEgress        = "egress"
	RoleNetwork       = "network"
	RoleSharedNetwork = "shared-network"
	RoleWorkspace     = "workspace"
	RoleSkills        = "skills"
	RoleAgent         = "agent"
	RoleHelper        = "helper" // sets the owner of a new workspace, then goes
)

// GeneratedPrefix begins the names that [GenerateName] makes.
const GeneratedPrefix = "cap-"

// Suffixes that name the parts of a sandbox. A sandbox of such a name would
// take the place of another one's part, so [CheckName] refuses them.
const (
	SuffixEgress    = "-egress"
	SuffixNetwork   = "-net"
	SuffixWorkspace = "-workspace"
	SuffixSkills    = "-skills"
	SuffixHelper    = "-init"
)

var (
	namePattern = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,100}$`)
	tagPattern  = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)
	envPattern  = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
)

// CheckName reports why a sandbox cannot have a name.
func CheckName(name string) error {
	if !namePattern.MatchString(name) {
		return &InvalidError{Field: "name", Value: name, Reason: "must match " + namePattern.String()}
	}
	for _, suffix := range []string{SuffixEgress, SuffixNetwork, SuffixWorkspace, SuffixSkills, SuffixHelper} {
		if strings.HasSuffix(name, suffix) {
			return &InvalidError{Field: "name", Value: name, Reason: fmt.Sprintf("must not end in %q, which names a part of another sandbox", suffix)}
		}
	}
	if strings.HasPrefix(name, AgentPrefix) {
		return &InvalidError{Field: "name", Value: name, Reason: fmt.Sprintf("must not begin with %q, which names the agent's volume", AgentPrefix)}
	}
	return nil
}

// AgentPrefix begins the names of what holds the agent on an engine.
const AgentPrefix = "capyrun-agent-"

// GenerateName returns a new name that no other sandbox has.
func GenerateName() string {
	var b [10]byte
	rand.Read(b[:]) // never fails, see crypto/rand
	return GeneratedPrefix + strings.ToLower(base32.StdEncoding.EncodeToString(b[:]))
}

// CheckTag reports why a command cannot have a tag.
func CheckTag(tag string) error {
	if !tagPattern.MatchString(tag) {
		return &InvalidError{Field: "tag", Value: tag, Reason: "must match " + tagPattern.String()}
	}
	return nil
}

// CheckEnv reports the first variable that cannot be set. The value is not
// repeated in the error: it may be a secret.
func CheckEnv(env map[string]string) error {
	for name, value := range env {
		if !envPattern.MatchString(name) {
			return &InvalidError{Field: "env", Value: name, Reason: "names must match " + envPattern.String()}
		}
		if strings.IndexByte(value, 0) >= 0 {
			return &InvalidError{Field: "env", Value: name, Reason: "the value must not contain NUL"}
		}
	}
	return nil
}

// CheckLabels reports the first of the user's labels that cannot be set.
func CheckLabels(labels map[string]string) error {
	for key, value := range labels {
		if key == "" {
			return &InvalidError{Field: "labels", Value: key, Reason: "keys must not be empty"}
		}
		if strings.HasPrefix(key, LabelPrefix) {
			return &InvalidError{Field: "labels", Value: key, Reason: "keys under " + LabelPrefix + " are reserved"}
		}
		for _, s := range []string{key, value} {
			if err := checkASCII("labels", s, "labels are ASCII"); err != nil {
				return err
			}
		}
	}
	return nil
}

func checkASCII(field, s, reason string) error {
	for _, r := range s {
		if r < 0x20 || r > 0x7e {
			return &InvalidError{Field: field, Value: s, Reason: fmt.Sprintf("%s: %q is not", reason, r)}
		}
	}
	return nil
}

func itoa(n int64) string { return strconv.FormatInt(n, 10) }
