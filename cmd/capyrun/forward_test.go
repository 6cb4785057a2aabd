package main

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/capybara-hq/capyrun/internal/testenv"
)

// echoServer sends back what it gets, until the end. Its queue has room for all
// connections: the kernel forgets those that find it full.
const echoServer = `
import shutil, socketserver
class Echo(socketserver.StreamRequestHandler):
    def handle(self):
        shutil.copyfileobj(self.rfile, self.wfile)
class Server(socketserver.ThreadingTCPServer):
    request_queue_size = 128
Server(("127.0.0.1", 7000), Echo).serve_forever()
`

// TestPortForwardMany: many connections at once through one session with a real
// sandbox, each of which ends one direction before the other.
func TestPortForwardMany(t *testing.T) {
	box := newBox(t, testenv.Build)
	capyrun := func(args ...string) {
		t.Helper()
		if out, err := exec.Command(testenv.Binary(t), args...).CombinedOutput(); err != nil {
			t.Fatalf("capyrun %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
	capyrun("exec", "-d", box, "--", "python3", "-c", echoServer)
	capyrun("wait-port", box, "7000")
	cmd := exec.Command(testenv.Binary(t), "port-forward", box, "0:7000")
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	address, _, _ := strings.Cut(line, " ")
	data := make([]byte, 100<<10)
	rand.Read(data)
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			conn, err := net.Dial("tcp", address)
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			conn.SetDeadline(time.Now().Add(patience))
			go func() {
				conn.Write(data)
				conn.(*net.TCPConn).CloseWrite()
			}()
			if got, err := io.ReadAll(conn); err != nil || !bytes.Equal(got, data) {
				t.Errorf("%d of %d bytes, %v", len(got), len(data), err)
			}
		})
	}
	wg.Wait()
	cmd.Process.Signal(os.Interrupt)
	cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 130 {
		t.Errorf("exit code %d", code)
	}
	if t.Failed() {
		t.Logf("stderr:\n%s", &stderr)
	}
}
