package writer

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// These tests judge real processes. The test program starts itself again as a
// witness: it says who it is, and then judges whom it is asked about, until its
// input ends. This happens before main, while the main thread is still its own.
const witnessOrder = "SWAMPD_TEST_JUDGE"

func init() {
	if order := os.Getenv(witnessOrder); order != "" {
		if err := witness(order); err != nil {
			fmt.Println("failed:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
}

type question struct {
	Recorded *Identity
	Guard    *Guard
}

type answer struct {
	Standing string
	Evidence string
	Kill     string // what kill(pid, 0) says
}

// witness carries out an order: words of what to do first.
func witness(order string) error {
	lock := ""
	for _, word := range strings.Fields(order) {
		var err error
		switch what, arg, _ := strings.Cut(word, "="); what {
		case "proc": // a /proc of its own, in a mount namespace of its own
			if err = unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err == nil {
				err = unix.Mount("proc", "/proc", "proc", 0, arg)
			}
		case "nobody":
			err = errors.Join(syscall.Setgroups(nil), syscall.Setresgid(65534, 65534, 65534), syscall.Setresuid(65534, 65534, 65534))
		case "lock":
			lock = arg
		case "exec":
			if n, _ := strconv.Atoi(arg); n > 0 {
				return becomeAgain(n - 1)
			}
		case "headless":
			return loseMainThread()
		case "serve":
		default:
			err = errors.New("unknown")
		}
		if err != nil {
			return fmt.Errorf("%s: %w", word, err)
		}
	}
	if lock != "" {
		f, err := os.OpenFile(lock, os.O_RDWR, 0)
		if err != nil {
			return err
		}
		defer f.Close()
		if ok, err := lockGuard(f, true); !ok || err != nil {
			return fmt.Errorf("the lock of %s: %v, %w", lock, ok, err)
		}
	}
	return serve(Self())
}

func serve(me *Identity) error {
	out := json.NewEncoder(os.Stdout)
	if err := out.Encode(me); err != nil {
		return err
	}
	in := json.NewDecoder(os.Stdin)
	for {
		var q question
		if err := in.Decode(&q); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		v := Judge(q.Recorded, q.Guard, me)
		a := answer{v.Standing.String(), v.Evidence, fmt.Sprint(syscall.Kill(q.Recorded.PID, 0))}
		if err := out.Encode(a); err != nil {
			return err
		}
	}
}

// loseMainThread ends the main thread, as a C library's pthread_exit does, and
// goes on in another.
func loseMainThread() error {
	me := Self()
	go func() {
		for {
			stat, err := os.ReadFile("/proc/self/stat")
			if err != nil {
				os.Exit(1)
			}
			if strings.Contains(string(stat), ") Z ") {
				break
			}
			runtime.Gosched()
		}
		if serve(me) != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}()
	_, _, err := syscall.Syscall(syscall.SYS_EXIT, 0, 0, 0)
	return err
}

// becomeAgain starts the program anew in this process, from another thread than
// the main one, which the kernel then removes.
func becomeAgain(rounds int) error {
	if rounds == execRounds-1 {
		if err := json.NewEncoder(os.Stdout).Encode(Self()); err != nil {
			return err
		}
	}
	failed := make(chan error)
	go func() {
		runtime.LockOSThread()
		os.Setenv(witnessOrder, fmt.Sprintf("exec=%d", rounds))
		failed <- syscall.Exec("/proc/self/exe", os.Args, os.Environ())
	}()
	return <-failed
}

const execRounds = 20

type proc struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
	id  *Identity
}

func startWitness(t *testing.T, order string, attr *syscall.SysProcAttr) *proc {
	t.Helper()
	p := &proc{t: t, cmd: exec.Command(os.Args[0])}
	p.cmd.Env = append(os.Environ(), witnessOrder+"="+order, "GORACE="+os.Getenv("GORACE")+" atexit_sleep_ms=0")
	p.cmd.Stderr = os.Stderr
	p.cmd.SysProcAttr = attr
	out, err := p.cmd.StdoutPipe()
	must(t, err)
	p.out = bufio.NewReader(out)
	p.in, err = p.cmd.StdinPipe()
	must(t, err)
	must(t, p.cmd.Start())
	t.Cleanup(func() {
		p.cmd.Process.Kill()
		p.cmd.Wait()
	})
	p.id = &Identity{}
	p.read(p.id)
	return p
}

// read waits for the next line.
func (p *proc) read(to any) {
	p.t.Helper()
	within(p.t, "an answer of a process", func() error {
		line, err := p.out.ReadBytes('\n')
		if err != nil {
			return err
		}
		if err := json.Unmarshal(line, to); err != nil {
			return fmt.Errorf("%q: %w", line, err)
		}
		return nil
	})
}

func (p *proc) judge(recorded *Identity, guard *Guard) answer {
	p.t.Helper()
	must(p.t, json.NewEncoder(p.in).Encode(question{recorded, guard}))
	var a answer
	p.read(&a)
	return a
}

// state is the letter that the system shows for the process.
func (p *proc) state() string {
	p.t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.id.PID))
	must(p.t, err)
	_, rest, _ := strings.Cut(string(stat), ") ")
	return rest[:1]
}

// became waits until the process has ended or stopped, and leaves the news to
// whoever asks next.
func (p *proc) became(what int) {
	p.t.Helper()
	within(p.t, "the news of a process", func() error {
		for {
			err := unix.Waitid(unix.P_PID, p.cmd.Process.Pid, nil, what|unix.WNOWAIT, nil)
			if !errors.Is(err, unix.EINTR) {
				return err
			}
		}
	})
}

func within(t *testing.T, what string, do func() error) {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- do() }()
	select {
	case err := <-done:
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	case <-time.After(time.Minute):
		t.Fatalf("%s does not come", what)
	}
}

func wantVerdict(t *testing.T, id *Identity, guard *Guard, want Standing, because string) {
	t.Helper()
	if got := Judge(id, guard, Self()); got.Standing != want || !strings.Contains(got.Evidence, because) {
		t.Errorf("got %v, want %v with %q", got, want, because)
	}
}

func wantAnswer(t *testing.T, got answer, want Standing, because string) {
	t.Helper()
	if got.Standing != want.String() || !strings.Contains(got.Evidence, because) {
		t.Errorf("got %+v, want %v with %q", got, want, because)
	}
}

func TestAProcessThatRunsIsAlive(t *testing.T) {
	t.Parallel()
	p := startWitness(t, "serve", nil)
	wantVerdict(t, p.id, nil, Alive, "same boot, pid namespace and time namespace; it has the recorded start time")
	wantAnswer(t, p.judge(Self(), nil), Alive, "")
	wantVerdict(t, Self(), nil, Alive, "")
	for name, id := range forgeries(p.id) {
		if got := Judge(id, nil, Self()); got.Standing != Unknown {
			t.Errorf("another %s: got %v, want unknown", name, got)
		}
	}
}

// forgeries are identities that differ from id in one part.
func forgeries(id *Identity) map[string]*Identity {
	all := map[string]*Identity{}
	for name, set := range parts {
		forged := *id
		set(&forged, "other")
		all[name] = &forged
	}
	return all
}

func TestAProcessThatWasKilledIsGone(t *testing.T) {
	t.Parallel()
	p := startWitness(t, "serve", nil)
	must(t, p.cmd.Process.Kill())
	p.became(unix.WEXITED)
	if got := p.state(); got != "Z" {
		t.Fatalf("its state is %s, want Z", got)
	}
	wantVerdict(t, p.id, nil, Gone, "its state is Z, it has ended and its parent has not taken note")
	p.cmd.Wait()
	wantVerdict(t, p.id, nil, Gone, fmt.Sprintf("/proc/%d is absent and kill(%[1]d, 0) says ESRCH", p.id.PID))
	for name, id := range forgeries(p.id) {
		if got := Judge(id, nil, Self()); got.Standing != Unknown {
			t.Errorf("another %s: got %v, want unknown", name, got)
		}
	}
}

func TestAPidThatWasGivenToAnotherProcessIsGone(t *testing.T) {
	t.Parallel()
	p := startWitness(t, "serve", nil)
	start, err := strconv.Atoi(p.id.StartTime)
	must(t, err)
	before := *p.id
	before.StartTime = strconv.Itoa(start - 1)
	wantVerdict(t, &before, nil, Gone, "its pid now belongs to another, which began at "+p.id.StartTime)
}

// Being looked at does not make a stopped process go on.
func TestAStoppedProcessIsAliveAndStaysStopped(t *testing.T) {
	t.Parallel()
	p := startWitness(t, "serve", nil)
	must(t, p.cmd.Process.Signal(syscall.SIGSTOP))
	p.became(unix.WSTOPPED)
	for range 100 {
		wantVerdict(t, p.id, nil, Alive, "its state is T")
	}
	if got := p.state(); got != "T" {
		t.Errorf("its state is %s, want T", got)
	}
	var news unix.Siginfo
	if err := unix.Waitid(unix.P_PID, p.id.PID, &news, unix.WCONTINUED|unix.WNOHANG|unix.WNOWAIT, nil); err != nil || news.Signo != 0 {
		t.Errorf("it went on: %+v, %v", news, err)
	}
	must(t, p.cmd.Process.Signal(syscall.SIGCONT))
	wantAnswer(t, p.judge(Self(), nil), Alive, "")
}

// A process lives as long as one of its threads: its main thread is shown as a
// zombie all the same.
func TestAProcessWithoutItsMainThreadIsAlive(t *testing.T) {
	t.Parallel()
	p := startWitness(t, "headless", nil)
	if got := p.state(); got != "Z" {
		t.Fatalf("the state of its main thread is %s, want Z", got)
	}
	wantVerdict(t, p.id, nil, Alive, "its state is Z for its main thread, but thread ")
	must(t, p.cmd.Process.Kill())
	p.became(unix.WEXITED)
	wantVerdict(t, p.id, nil, Gone, "its state is Z, it has ended")
}

// A process that becomes another program stays the one that it is, though the
// kernel takes its main thread away for that.
func TestAProcessThatBecomesAnotherProgramIsNeverGone(t *testing.T) {
	t.Parallel()
	p := startWitness(t, fmt.Sprintf("exec=%d", execRounds), nil)
	came := make(chan struct{})
	var later Identity
	go func() {
		defer close(came)
		if line, err := p.out.ReadBytes('\n'); err == nil {
			json.Unmarshal(line, &later)
		}
	}()
	looked := map[Standing]int{}
	for bound := time.After(time.Minute); ; {
		v := Judge(p.id, nil, Self())
		if looked[v.Standing]++; v.Standing == Gone {
			t.Fatalf("got %v", v)
		}
		select {
		case <-bound:
			t.Fatal("it does not come to its end")
		default:
			continue
		case <-came:
		}
		break
	}
	if later.PID != p.id.PID || later.StartTime != p.id.StartTime {
		t.Errorf("it was %+v and became %+v", p.id, later)
	}
	wantVerdict(t, p.id, nil, Alive, "")
	t.Logf("%v", looked)
}

// root skips a test for which the system wants root.
func root(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("namespaces, mounts and other users are root's: run this test as root")
	}
}

// As after the restart of a container: the same host and boot, another pid
// namespace, in which the pid of the living process is nobody's.
func TestAnotherPidNamespaceIsUnknown(t *testing.T) {
	t.Parallel()
	root(t)
	outer := startWitness(t, "serve", nil)
	inner := startWitness(t, "proc", &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS})
	if inner.id.PID != 1 || inner.id.Hostname != outer.id.Hostname || inner.id.BootID != outer.id.BootID || inner.id.StartTime == "" {
		t.Fatalf("the container is %+v, the host %+v", inner.id, outer.id)
	}
	got := inner.judge(outer.id, nil)
	if got.Kill != unix.ESRCH.Error() {
		t.Fatalf("in the container kill says %s of the process outside", got.Kill)
	}
	wantAnswer(t, got, Unknown, "its pid namespace is "+outer.id.PIDNamespace)
	wantVerdict(t, inner.id, nil, Unknown, "its pid namespace is "+inner.id.PIDNamespace)
	wantAnswer(t, inner.judge(inner.id, nil), Alive, "")
	gone := *inner.id
	gone.PID = 1 << 22
	wantAnswer(t, inner.judge(&gone, nil), Gone, "ESRCH")

	// With the /proc of the host in the container, nothing is known.
	inner = startWitness(t, "serve", &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID})
	if inner.id.StartTime != "" {
		t.Errorf("it took its start time from another namespace's /proc: %+v", inner.id)
	}
	gone = *outer.id
	gone.PIDNamespace = inner.id.PIDNamespace
	wantAnswer(t, inner.judge(&gone, nil), Unknown, "does not know its own pid and start time")
}

func TestAProcessOfAnotherUserIsAlive(t *testing.T) {
	t.Parallel()
	root(t)
	p := startWitness(t, "serve", nil)
	nobody := startWitness(t, "nobody", nil)
	got := nobody.judge(p.id, nil)
	if got.Kill != unix.EPERM.Error() {
		t.Fatalf("kill says %s, want %v", got.Kill, unix.EPERM)
	}
	wantAnswer(t, got, Alive, "it has the recorded start time")
	must(t, p.cmd.Process.Kill())
	p.cmd.Wait()
	wantAnswer(t, nobody.judge(p.id, nil), Gone, "ESRCH")
}

// Nobody sees the processes of others in a /proc that hides them: they are not
// gone, nor are those that really are.
func TestAHiddenProcessIsUnknown(t *testing.T) {
	t.Parallel()
	root(t)
	var name unix.Utsname
	must(t, unix.Uname(&name))
	var major, minor int
	fmt.Sscanf(unix.ByteSliceToString(name.Release[:]), "%d.%d", &major, &minor)
	if major*100+minor < 508 {
		t.Skip("before Linux 5.8 hidepid is of a pid namespace, not of a mount: this would change /proc for all")
	}
	p := startWitness(t, "serve", nil)
	for option, hides := range map[string]string{
		"hidepid=0": "",
		"hidepid=1": "permit",
		"hidepid=2": "EPERM: it exists and is hidden",
		"hidepid=4": "EPERM: it exists and is hidden",
	} {
		nobody := startWitness(t, "proc="+option+" nobody", &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS})
		if nobody.id.PIDNamespace != p.id.PIDNamespace {
			t.Fatalf("%s: another pid namespace", option)
		}
		killed := startWitness(t, "serve", nil)
		must(t, killed.cmd.Process.Kill())
		killed.cmd.Wait()
		if hides == "" {
			wantAnswer(t, nobody.judge(p.id, nil), Alive, "")
			wantAnswer(t, nobody.judge(killed.id, nil), Gone, "")
			continue
		}
		wantAnswer(t, nobody.judge(p.id, nil), Unknown, hides)
		wantAnswer(t, nobody.judge(killed.id, nil), Unknown, "/proc is mounted with hidepid=")
		wantAnswer(t, nobody.judge(nobody.id, nil), Alive, "")
	}
}

func TestAGuardKeepsAKilledProcessUnknown(t *testing.T) {
	t.Parallel()
	killed := startWitness(t, "serve", nil)
	must(t, killed.cmd.Process.Kill())
	killed.cmd.Wait()
	g := madeGuard(t)
	wantVerdict(t, killed.id, g, Gone, "its guard "+g.Path+" is here and unlocked")

	holder := startWitness(t, "lock="+g.Path, nil)
	wantVerdict(t, killed.id, g, Unknown, "a process holds it locked")
	wantVerdict(t, holder.id, g, Alive, "")
	must(t, holder.cmd.Process.Signal(syscall.SIGSTOP))
	holder.became(unix.WSTOPPED)
	wantVerdict(t, killed.id, g, Unknown, "a process holds it locked")
	must(t, holder.cmd.Process.Kill())
	holder.cmd.Wait()
	wantVerdict(t, holder.id, g, Gone, "unlocked")

	// A copy has another inode, and a lock on it says nothing.
	copied := *g
	copied.Path += ".copy"
	must(t, os.WriteFile(copied.Path, []byte(g.ID+"\n"), 0o600))
	wantVerdict(t, killed.id, &copied, Unknown, "another file (inode ")
	must(t, os.Rename(copied.Path, g.Path))
	wantVerdict(t, killed.id, g, Unknown, "another file (inode ")
	must(t, os.Remove(g.Path))
	wantVerdict(t, killed.id, g, Unknown, "it is not here")
	for _, id := range slices.Collect(maps.Values(forgeries(killed.id))) {
		wantVerdict(t, id, madeGuard(t), Unknown, "so it was not looked at")
	}
}
