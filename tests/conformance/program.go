package conformance

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"

	"github.com/ledgermq/ledgermq/tests/cluster"
)

// program is a running JVM that takes one case after the other. It is told `run NAME ID ARGUMENT…` and prints lines, both with tabs
// between the words: `line KEY VALUE`, `pause` and then waits for `go`, and `end` or `failed WHY` as the last one of a case.
type program struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *bufio.Scanner
	stderr string // a file
	mu     sync.Mutex
	broken error
}

// programs are the main classes of the clients that are programs of tests/java, the module whose jars they need, and others whose classes.
var programs = map[string]struct {
	module, class string
	more          []string
}{
	"current": {"current", "org.ledgermq.tests.Conformance", nil},
	"legacy":  {"legacy", "org.ledgermq.tests.Conformance", nil},
	"mqadmin": {"server", "org.ledgermq.admin.Mqadmin", []string{"current"}},
}

// startProgram starts the program of a client. It ends with ctx.
func startProgram(ctx context.Context, client, dir string, namesrv []string, controller string) (*program, error) {
	what := programs[client]
	target := filepath.Join(cluster.Root(), "tests", "java", what.module, "target")
	if _, err := os.Stat(filepath.Join(target, "classes")); err != nil {
		return nil, fmt.Errorf("the Java programs are not built: run `tests/ci/java build`: %w", err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	path := []string{filepath.Join(target, "classes"), filepath.Join(target, "lib", "*")}
	for _, module := range what.more {
		path = append(path, filepath.Join(cluster.Root(), "tests", "java", module, "target", "classes"))
	}
	p := &program{stderr: filepath.Join(dir, "stderr.log")}
	errors, err := os.Create(p.stderr)
	if err != nil {
		return nil, err
	}
	defer errors.Close()
	p.cmd = exec.CommandContext(ctx, "java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC",
		"-Duser.home="+dir, "-Drocketmq.home.dir="+dir, "-Drocketmq.client.logRoot="+dir,
		"-Drocketmq.client.localOffsetStoreDir="+filepath.Join(dir, "offsets"),
		"-cp", strings.Join(path, string(os.PathListSeparator)),
		what.class, strings.Join(namesrv, ";"), controller)
	p.cmd.Stderr = errors
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.out = bufio.NewScanner(out)
	p.out.Buffer(nil, 1<<20)
	return p, p.cmd.Start()
}

// run runs one case. When e ends first the process is killed, and every later case fails.
func (p *program) run(e *Env, name string, args []string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.broken != nil {
		return fmt.Errorf("the program has ended in an earlier case: %w", p.broken)
	}
	stop := context.AfterFunc(e, func() { p.cmd.Process.Kill() })
	defer stop()
	err := p.take(e, name, args)
	if p.broken != nil {
		p.cmd.Process.Kill()
	}
	return err
}

func (p *program) take(e *Env, name string, args []string) error {
	line := strings.Join(append([]string{"run", name, e.ID}, args...), "\t")
	if _, err := io.WriteString(p.in, line+"\n"); err != nil {
		p.broken = err
		return p.tell(err)
	}
	for p.out.Scan() {
		word, rest, _ := strings.Cut(p.out.Text(), "\t")
		switch word {
		case "line":
			key, value, _ := strings.Cut(rest, "\t")
			e.Print(key, value)
		case "pause":
			if err := e.Pause(); err != nil {
				p.broken = err
				return err
			}
			if _, err := io.WriteString(p.in, "go\n"); err != nil {
				p.broken = err
				return p.tell(err)
			}
		case "end":
			return nil
		case "failed":
			return p.tell(fmt.Errorf("%s", rest))
		}
	}
	p.broken = fmt.Errorf("case %s: no more output: %w", name, context.Cause(e))
	return p.tell(p.broken)
}

// tell adds the end of what the program has said on standard error.
func (p *program) tell(err error) error {
	const most = 3000
	text, _ := os.ReadFile(p.stderr)
	if len(text) > most {
		text = text[len(text)-most:]
	}
	return fmt.Errorf("%w\n%s", err, text)
}

func (p *program) close() {
	p.in.Close()
	p.cmd.Process.Kill()
	p.cmd.Wait()
}
