package wire

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"strings"
	"testing"
	"testing/iotest"
	"time"
	"unicode/utf8"

	"github.com/capybara-hq/capyrun/provider"
	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestFrames(t *testing.T) {
	var b bytes.Buffer
	w := NewWriter(&b)
	w.Frame(TypeData, []byte("abc"))
	w.Raw(TypeStdout, make([]byte, MaxData+1))
	w.JSON(TypeFinal, &Response{Count: 7})
	w.Frame(200, []byte("unknown"))
	w.Frame(TypeEnd, nil)
	if b.Len() > 0 {
		t.Error("written before Flush")
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	whole := b.Bytes()
	for _, r := range []io.Reader{bytes.NewReader(whole), iotest.OneByteReader(bytes.NewReader(whole))} {
		in := NewReader(r)
		var got []string
		for {
			typ, n, err := in.Next()
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, fmt.Sprint(typ, " ", n))
			if typ == TypeFinal {
				var resp Response
				if err := in.JSON(&resp); err != nil || resp.Count != 7 {
					t.Errorf("%+v, %v", resp, err)
				}
			}
		}
		if want := "2 3,16 65536,16 1,19 11,200 7,3 0"; strings.Join(got, ",") != want {
			t.Errorf("got %q", got)
		}
	}
	// Every truncation is told from an end.
	for n := 1; n < len(whole); n += 1 + n/100 {
		in := NewReader(bytes.NewReader(whole[:n]))
		var err error
		ends := map[int]bool{8: true, 8 + 65541: true, 8 + 65541 + 6: true, 65571: true, 65583: true}
		for err == nil {
			_, _, err = in.Next()
		}
		if (err == io.EOF) != ends[n] && err != io.ErrUnexpectedEOF {
			t.Errorf("after %d bytes: %v", n, err)
		}
	}
}

func TestFrameCaps(t *testing.T) {
	for typ, most := range map[Type]int{TypeRequest: MaxRequest, TypeData: MaxData, TypeEnd: 0, TypeItems: MaxItems, TypeFinal: MaxFinal, 99: maxUnknown} {
		h := binary.BigEndian.AppendUint32([]byte{byte(typ)}, uint32(most+1))
		if _, _, err := NewReader(bytes.NewReader(h)).Next(); !errors.Is(err, ErrGarbled) {
			t.Errorf("type %d with %d bytes: %v", typ, most+1, err)
		}
	}
	if NewWriter(io.Discard).JSON(TypeFinal, &Response{Error: &Error{Message: strings.Repeat("x", MaxFinal)}}) {
		t.Error("a frame beyond its cap was accepted")
	}
}

func TestHello(t *testing.T) {
	var b bytes.Buffer
	if err := WriteHello(&b, Hello{Version: 1, Capabilities: []string{"x"}, PID: 3}); err != nil {
		t.Fatal(err)
	}
	whole := b.String()
	r := strings.NewReader(whole + "rest")
	h, err := ReadHello(r)
	if err != nil || h.PID != 3 || r.Len() != 4 {
		t.Errorf("%+v, %v, %d bytes left", h, err, r.Len())
	}
	for n := range len(whole) {
		if _, err := ReadHello(strings.NewReader(whole[:n])); err != io.ErrUnexpectedEOF {
			t.Errorf("after %d bytes: %v", n, err)
		}
	}
	for _, bad := range []string{
		"OCI runtime exec failed: no such file", "HTTP", magic + "\xff\xff\xff\xff", magic + "\x00\x00\x00\x02{}", magic + "\x00\x00\x00\x01x",
	} {
		if _, err := ReadHello(strings.NewReader(bad)); !errors.Is(err, ErrGarbled) {
			t.Errorf("%q: %v", bad, err)
		}
	}
	future := `{"version":9,"capabilities":["y"],"new":{"a":[1]}}`
	if h, err := ReadHello(strings.NewReader(magic + "\x00\x00\x00" + string(rune(len(future))) + future)); err != nil || h.Version != 9 {
		t.Errorf("%+v, %v", h, err)
	}
}

func TestErrors(t *testing.T) {
	for _, err := range []error{
		fs.ErrNotExist, fs.ErrPermission, fs.ErrExist, provider.ErrIsDirectory, provider.ErrNotDirectory, provider.ErrNotStarted,
		provider.ErrGone, provider.ErrUnsupported, context.Canceled,
	} {
		got := EncodeError(fmt.Errorf("doing it: %w", err)).Decode()
		if !errors.Is(got, err) || got.Error() != "doing it: "+err.Error() {
			t.Errorf("%v became %v", err, got)
		}
	}
	invalid := &provider.InvalidError{Field: "path", Value: "\xff", Reason: "is bad"}
	if got := EncodeError(invalid).Decode(); !errors.Is(got, provider.ErrInvalid) || !strings.Contains(got.Error(), "path") {
		t.Errorf("got %v", got)
	}
	// An agent cannot claim what is not its to say, nor write to a terminal.
	for _, kind := range []string{"session lost", "not owned by us", "image not found", "deadline exceeded"} {
		got := (&Error{Kind: kind, Message: "\x1b[2J\x07x\u009b" + strings.Repeat("y", 100000)}).Decode()
		if provider.KindOf(got) != "" {
			t.Errorf("%q is believed", kind)
		}
		if len(got.Error()) > maxMessage || strings.ContainsAny(got.Error(), "\x1b\x07\u009b") {
			t.Errorf("%.20q", got.Error())
		}
	}
}

func TestKeeper(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.Int64Range(0, 50).Draw(t, "limit")
		k := NewKeeper(limit)
		var all, kept [2]string
		total := int64(0)
		for range rapid.IntRange(0, 20).Draw(t, "pieces") {
			s := provider.Stream(rapid.IntRange(1, 2).Draw(t, "stream"))
			data := rapid.StringOfN(rapid.RuneFrom([]rune("aé€😀")), 0, 8, -1).Draw(t, "data")
			all[s-1] += data
			kept[s-1] += string(k.Keep(s, []byte(data)))
			total += int64(len(data))
		}
		for i := range all {
			s := provider.Stream(i + 1)
			if !strings.HasPrefix(all[i], kept[i]) {
				t.Fatalf("%q is no beginning of %q", kept[i], all[i])
			}
			if k.Cut(s) != (len(kept[i]) < len(all[i])) {
				t.Fatalf("cut %v", k.Cut(s))
			}
			if k.Cut(s) {
				kept[i] = string(TrimCut([]byte(kept[i])))
			}
			if !utf8.ValidString(kept[i]) {
				t.Fatalf("a character was split: %q", kept[i])
			}
		}
		if n := int64(len(kept[0]) + len(kept[1])); n > limit || total > limit && n < limit-6 || total <= limit && n != total {
			t.Fatalf("kept %d of %d, limit %d", n, total, limit)
		}
	})
}

func TestTrim(t *testing.T) {
	for in, want := range map[string]string{"": "", "a": "a", "aé": "aé", "a\xc3": "a", "a\xe2\x82": "a", "\xf0\x9f\x98": "", "\xff\xff": "\xff\xff", "\x80\x80\x80\x80": "\x80\x80\x80\x80"} {
		if got := string(TrimCut([]byte(in))); got != want {
			t.Errorf("TrimCut(%q) = %q", in, got)
		}
	}
	for in, want := range map[string]string{"": "", "a": "a", "\x82\xaca": "a", "é": "é", "\x80\x80\x80\x80\x80": "\x80\x80\x80\x80\x80"} {
		if got := string(TrimHead([]byte(in))); got != want {
			t.Errorf("TrimHead(%q) = %q", in, got)
		}
	}
}

// fake is a connection whose peer is a byte slice.
type fake struct {
	io.Reader
	io.Writer
}

func (fake) Close() error { return nil }

func muxFrame(version, typ byte, flags uint16, id, length uint32, body string) string {
	h := []byte{version, typ}
	h = binary.BigEndian.AppendUint16(h, flags)
	h = binary.BigEndian.AppendUint32(h, id)
	h = binary.BigEndian.AppendUint32(h, length)
	return string(h) + body
}

func TestGuard(t *testing.T) {
	syn := muxFrame(0, muxWindowUpdate, flagSYN, 1, 0, "")
	for _, tt := range []struct {
		name   string
		client bool
		sent   string // by this side before
		in     string
		want   string
	}{
		{"data", true, syn, muxFrame(0, muxData, flagACK, 1, 3, "abc"), ""},
		{"go away", true, syn, muxFrame(0, muxGoAway, 0, 0, 0, ""), ""},
		{"version", true, syn, muxFrame(1, muxData, 0, 1, 3, "abc"), "version"},
		{"type", true, syn, muxFrame(0, 9, 0, 1, 0, ""), "type"},
		{"flags", true, syn, muxFrame(0, muxData, 16, 1, 0, ""), "flags"},
		{"ping", true, syn, muxFrame(0, muxPing, flagSYN, 0, 1, ""), "type"},
		{"ping answer", true, syn, muxFrame(0, muxPing, flagACK, 0, 1, ""), "type"},
		{"server opens", true, syn, muxFrame(0, muxWindowUpdate, flagSYN, 2, 0, ""), "no client opens"},
		{"server opens an odd one", true, syn, muxFrame(0, muxWindowUpdate, flagSYN, 1, 0, ""), "opened a stream"},
		{"unknown stream", true, syn, muxFrame(0, muxData, 0, 3, 1, "x"), "not opened"},
		{"stream 0", true, syn, muxFrame(0, muxData, 0, 0, 1, "x"), "no client opens"},
		{"too much", true, syn, muxFrame(0, muxData, 0, 1, maxFrame+1, ""), "window"},
		{"go away with a stream", true, syn, muxFrame(0, muxGoAway, 0, 1, 0, ""), "misplaced"},
		{"flood", true, syn, strings.Repeat(muxFrame(0, muxWindowUpdate, 0, 1, 0, ""), 1000), "carry nothing"},
		{"flood of empty data", true, syn, strings.Repeat(muxFrame(0, muxData, 0, 1, 0, ""), 1000), "carry nothing"},
		{"flood of resets", true, syn, strings.Repeat(muxFrame(0, muxWindowUpdate, flagRST, 1, 0, ""), 1000), "carry nothing"},
		{"client opens", false, "", syn, ""},
		{"client acknowledges", false, "", muxFrame(0, muxWindowUpdate, flagACK, 1, 0, ""), "acknowledges"},
		{"client pings", false, "", muxFrame(0, muxPing, flagSYN, 0, 1, ""), "type"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, r := range []io.Reader{strings.NewReader(tt.in), iotest.OneByteReader(strings.NewReader(tt.in))} {
				g := newGuard(fake{r, io.Discard}, tt.client)
				io.WriteString(g, tt.sent)
				got, err := io.ReadAll(g)
				if tt.want == "" && (err != nil || string(got) != tt.in) {
					t.Errorf("got %d bytes, %v", len(got), err)
				}
				if tt.want != "" && (!errors.Is(err, ErrGarbled) || !strings.Contains(err.Error(), tt.want)) {
					t.Errorf("error %v, want %q", err, tt.want)
				}
			}
		})
	}
}

// TestGuardPassesTraffic: two correct peers never trip it, whatever they do.
func TestGuardPassesTraffic(t *testing.T) {
	a, b := net.Pipe()
	client, err := NewMux(a, true)
	if err != nil {
		t.Fatal(err)
	}
	server, err := NewMux(b, false)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			st, err := server.AcceptStream()
			if err != nil {
				return
			}
			go func() {
				io.Copy(st, st)
				st.Close()
			}()
		}
	}()
	for i := range 100 {
		st, err := client.OpenStream()
		if err != nil {
			t.Fatal(err)
		}
		data := bytes.Repeat([]byte{byte(i)}, 1+i*i*97%1000000)
		go func() {
			for chunk := data; len(chunk) > 0; {
				n := min(len(chunk), 1+i*977)
				st.Write(chunk[:n])
				chunk = chunk[n:]
			}
			if i%3 > 0 {
				st.Close()
			}
		}()
		if i%3 == 0 {
			io.ReadFull(st, make([]byte, len(data)/2))
			st.Close() // in the middle
			continue
		}
		if got, err := io.ReadAll(st); err != nil || !bytes.Equal(got, data) {
			t.Fatalf("stream %d: got %d bytes of %d, %v", i, len(got), len(data), err)
		}
	}
	client.Close()
	server.Close()
}

func FuzzReader(f *testing.F) {
	f.Add([]byte{2, 0, 0, 0, 1, 'x', 19, 0, 0, 0, 2, '{', '}'})
	f.Add([]byte{1, 0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, data []byte) {
		r := NewReader(bytes.NewReader(data))
		total := 0
		for {
			typ, n, err := r.Next()
			if err != nil {
				return
			}
			if total += n + frameHeader; n > typ.cap() {
				t.Fatalf("type %d with %d bytes", typ, n)
			}
			switch typ {
			case TypeRequest:
				var req Request
				r.JSON(&req)
			case TypeFinal:
				var resp Response
				if r.JSON(&resp) == nil && resp.Error != nil {
					_ = resp.Error.Decode().Error()
				}
			case TypeData:
				r.Payload()
			}
		}
	})
}

func FuzzHello(f *testing.F) {
	f.Add([]byte(magic + "\x00\x00\x00\x0d{\"version\":1}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if h, err := ReadHello(bytes.NewReader(data)); err == nil && h.Version < 1 {
			t.Errorf("%+v", h)
		}
	})
}

// FuzzMux gives a client's multiplexer whatever a server may send. Its
// goroutines must end, and nothing may be read beyond the bounds.
func FuzzMux(f *testing.F) {
	f.Add([]byte(muxFrame(0, muxData, flagACK, 1, 3, "abc")))
	f.Add([]byte(muxFrame(0, muxWindowUpdate, flagACK|flagFIN, 1, 1<<31, "") + muxFrame(0, muxWindowUpdate, flagFIN, 1, 0, "")))
	f.Add([]byte(muxFrame(0, muxGoAway, 0, 0, 7, "")))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := NewMux(fake{bytes.NewReader(data), io.Discard}, true)
		if err != nil {
			t.Fatal(err)
		}
		if st, err := m.OpenStream(); err == nil {
			st.Write([]byte("x"))
			io.Copy(io.Discard, io.LimitReader(st, 1<<20))
		}
		m.Close()
	})
}

// TestWindowIsGranted proves that a client may send a whole window before the
// server says anything of its own.
func TestWindowIsGranted(t *testing.T) {
	a, b := net.Pipe()
	server, err := NewMux(b, false)
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	client, err := NewMux(a, true)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	st, err := client.OpenStream()
	if err != nil {
		t.Fatal(err)
	}
	go server.AcceptStream()
	st.SetWriteDeadline(time.Now().Add(10 * time.Second))
	if n, err := st.Write(make([]byte, Window)); err != nil {
		t.Fatalf("%d bytes written of a window of %d: %v", n, Window, err)
	}
}
