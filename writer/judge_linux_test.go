package writer

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// fakeProc is a directory that looks like /proc, for what cannot be had at will.
type fakeProc struct {
	t *testing.T
	procfs
}

func newFakeProc(t *testing.T) *fakeProc {
	p := &fakeProc{t: t}
	p.root = t.TempDir()
	p.kill = func(int) error { return unix.ESRCH }
	p.hides = func() error { return nil }
	return p
}

func (p *fakeProc) stat(name string, pid int, state string, threads int, start string) {
	p.t.Helper()
	p.write(name, fmt.Sprintf("%d (a) S 1 (b) %s 1 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 %d 0 %s 1000 200\n", pid, state, threads, start))
}

func (p *fakeProc) write(name, text string) {
	p.t.Helper()
	name = filepath.Join(p.root, name)
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		p.t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		p.t.Fatal(err)
	}
}

func TestWhatProcShowsOfAProcess(t *testing.T) {
	for name, c := range map[string]struct {
		make func(*fakeProc)
		want sighting // its words are a part of what it says
	}{
		"runs":                       {func(p *fakeProc) { p.stat("7/stat", 7, "R", 1, "55") }, sighting{present, "55", false, "its state is R"}},
		"stopped":                    {func(p *fakeProc) { p.stat("7/stat", 7, "T", 3, "55") }, sighting{present, "55", false, "its state is T"}},
		"waits":                      {func(p *fakeProc) { p.stat("7/stat", 7, "D", 3, "55") }, sighting{present, "55", false, "its state is D"}},
		"zombie":                     {func(p *fakeProc) { p.stat("7/stat", 7, "Z", 1, "55") }, sighting{present, "55", true, "has ended"}},
		"dead":                       {func(p *fakeProc) { p.stat("7/stat", 7, "X", 1, "55") }, sighting{present, "55", true, "has ended"}},
		"dead, as older kernels say": {func(p *fakeProc) { p.stat("7/stat", 7, "x", 1, "55") }, sighting{present, "55", true, "has ended"}},
		// Exec by another thread removes the main thread and keeps the pid.
		"being removed": {func(p *fakeProc) { p.stat("7/stat", 7, "X", 0, "55") }, sighting{words: "changing"}},
		"another thread lives": {func(p *fakeProc) {
			p.stat("7/stat", 7, "Z", 3, "55")
			p.stat("7/task/7/stat", 7, "Z", 3, "55")
			p.stat("7/task/8/stat", 8, "Z", 3, "56")
			p.stat("7/task/9/stat", 9, "S", 3, "56")
		}, sighting{present, "55", false, "thread 9 lives (state S)"}},
		"all threads dead": {func(p *fakeProc) {
			p.stat("7/stat", 7, "Z", 2, "55")
			p.stat("7/task/7/stat", 7, "Z", 2, "55")
			p.stat("7/task/8/stat", 8, "Z", 2, "56")
		}, sighting{present, "55", true, "its 2 threads have all ended"}},
		"more threads than are listed": {func(p *fakeProc) {
			p.stat("7/stat", 7, "Z", 3, "55")
			p.stat("7/task/7/stat", 7, "Z", 3, "55")
			p.stat("7/task/8/stat", 8, "Z", 3, "56")
		}, sighting{words: "changing"}},
		"threads cannot be listed": {func(p *fakeProc) {
			p.stat("7/stat", 7, "Z", 2, "55")
			p.write("7/task", "")
		}, sighting{words: "its threads: "}},
		"a thread that ends": {func(p *fakeProc) {
			p.stat("7/stat", 7, "Z", 2, "55")
			p.write("7/task/8/other", "")
		}, sighting{words: "its thread 8: "}},
		"ends while looked at": {func(p *fakeProc) { p.write("7/other", "") }, sighting{words: "it ended"}},
		"cannot be read":       {func(p *fakeProc) { p.write("7/stat/x", "") }, sighting{words: "7/stat: "}},
		"cannot be opened":     {func(p *fakeProc) { p.write("7", "") }, sighting{words: "/7"}},
		"nothing":              {func(p *fakeProc) { p.write("7/stat", "") }, sighting{words: "not understood"}},
		"cut off":              {func(p *fakeProc) { p.write("7/stat", "7 (swampd) S 1 1") }, sighting{words: "not understood"}},
		"no number of threads": {func(p *fakeProc) {
			p.write("7/stat", "7 (a) S 1 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 many 0 55 1000 200\n")
		}, sighting{words: "not understood"}},
		"of another pid":        {func(p *fakeProc) { p.stat("7/stat", 77, "R", 1, "55") }, sighting{words: "not understood"}},
		"absent":                {func(*fakeProc) {}, sighting{presence: absent, words: "/proc/7 is absent and kill(7, 0) says ESRCH"}},
		"hidden, another's":     {func(p *fakeProc) { p.kill = func(int) error { return unix.EPERM } }, sighting{words: "exists and is hidden"}},
		"hidden, mine":          {func(p *fakeProc) { p.kill = func(int) error { return nil } }, sighting{words: "says that it exists"}},
		"kill is not possible":  {func(p *fakeProc) { p.kill = func(int) error { return unix.ENOSYS } }, sighting{words: "says function not implemented"}},
		"absent, hiding /proc":  {func(p *fakeProc) { p.hides = func() error { return errors.New("of hidepid") } }, sighting{words: "because of hidepid"}},
		"comes while looked at": {func(p *fakeProc) { p.kill = func(int) error { p.stat("7/stat", 7, "R", 1, "99"); return nil } }, sighting{present, "99", false, "R"}},
		"goes while looked at": {func(p *fakeProc) {
			stays := 2
			p.procfs.kill = func(int) error {
				if stays--; stays >= 0 {
					return nil
				}
				return unix.ESRCH
			}
		}, sighting{presence: absent, words: "ESRCH"}},
	} {
		p := newFakeProc(t)
		c.make(p)
		got := p.look(7)
		if !strings.Contains(got.words, c.want.words) {
			t.Errorf("%s: it says %q, want %q", name, got.words, c.want.words)
		}
		if got.words = c.want.words; got != c.want {
			t.Errorf("%s: got %+v, want %+v", name, got, c.want)
		}
	}
}

// Threads that come and go while they are looked at make no dead process.
func TestThreadsThatChangeAreNotDead(t *testing.T) {
	p := newFakeProc(t)
	dir := filepath.Join(p.root, "7")
	p.stat("7/stat", 7, "Z", 2, "55")
	p.stat("7/task/7/stat", 7, "Z", 2, "55")
	p.stat("7/task/8/stat", 8, "Z", 2, "56")
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	for _, change := range []func(){
		func() { p.stat("7/stat", 7, "Z", 3, "55") },
		func() { p.stat("7/stat", 7, "Z", 2, "99") },
	} {
		change()
		if s, sure := lookAtThreads(root, 7, sighting{presence: present, start: "55"}); sure || s.dead || s.presence != unreadable {
			t.Errorf("got %+v, sure %v", s, sure)
		}
	}
}

// A thread that ends as another begins leaves the number of threads as it was.
func TestAThreadThatTakesTheTurnOfAnotherIsNotMissed(t *testing.T) {
	p := newFakeProc(t)
	p.stat("7/stat", 7, "Z", 2, "55")
	p.stat("7/task/7/stat", 7, "Z", 2, "55")
	p.stat("7/task/8/other", 8, "Z", 2, "56")
	p.stat("9/stat", 9, "S", 2, "57")
	pipe := filepath.Join(p.root, "7/task/8/stat")
	must(t, unix.Mkfifo(pipe, 0o600))
	go func() {
		f, err := os.OpenFile(pipe, os.O_WRONLY, 0) // blocks until thread 8 is looked at
		if err != nil {
			t.Error(err)
			return
		}
		defer f.Close()
		for _, err := range []error{
			os.Rename(filepath.Join(p.root, "7/task/8"), filepath.Join(p.root, "8")),
			os.Rename(filepath.Join(p.root, "9"), filepath.Join(p.root, "7/task/9")),
		} {
			if err != nil {
				t.Error(err)
			}
		}
		fmt.Fprint(f, "8 (a) Z 1 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 2 0 56 1000 200\n")
	}()
	if got, want := p.look(7), (sighting{present, "55", false, "its state is Z for its main thread, but thread 9 lives (state S)"}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestAProcThatIsNotMineShowsNothing(t *testing.T) {
	me := Self()
	real := procfs{root: "/proc"}
	if err := real.showsMe(me); err != nil {
		t.Fatalf("my own: %v", err)
	}
	for name, change := range map[string]func(*procfs, *Identity){
		"no procfs": func(p *procfs, _ *Identity) { p.root = t.TempDir() },
		"a copy": func(p *procfs, _ *Identity) {
			copied := newFakeProc(t)
			for _, name := range []string{"status", "stat"} {
				data, err := os.ReadFile("/proc/self/" + name)
				must(t, err)
				copied.write(fmt.Sprintf("%d/%s", os.Getpid(), name), string(data))
			}
			dir := filepath.Join(copied.root, strconv.Itoa(os.Getpid()))
			must(t, os.Symlink(filepath.Base(dir), filepath.Join(copied.root, "self")))
			must(t, os.Mkdir(filepath.Join(dir, "ns"), 0o700))
			must(t, os.Symlink(me.PIDNamespace, filepath.Join(dir, "ns/pid")))
			p.root = copied.root
		},
		"nothing":               func(p *procfs, _ *Identity) { p.root = "/nowhere" },
		"another pid":           func(_ *procfs, id *Identity) { id.PID++ },
		"another start time":    func(_ *procfs, id *Identity) { id.StartTime += "1" },
		"another pid namespace": func(_ *procfs, id *Identity) { id.PIDNamespace = "pid:[1]" },
	} {
		p, id := real, *me
		change(&p, &id)
		if p.showsMe(&id) == nil {
			t.Errorf("%s: is trusted", name)
		}
	}
	// And then nobody is gone, though all parts are equal.
	lost, me := *me, Self()
	lost.PID = 1 << 22 // beyond what the kernel gives
	if got := Judge(&lost, nil, me); got.Standing != Gone {
		t.Errorf("a pid that nobody has: got %v, want gone", got)
	}
	me.StartTime += "1"
	if got := Judge(&lost, nil, me); got.Standing != Unknown || !strings.Contains(got.Evidence, "not to be trusted") {
		t.Errorf("asked under a wrong identity: got %v, want unknown", got)
	}
}

// A process of an inner pid namespace can have the same number in the outer one.
func TestAProcOfAnOuterNamespaceIsKnownByItsPids(t *testing.T) {
	for status, want := range map[string]bool{
		"Name:\ta\nPid:\t7\nNSpid:\t7\nNSpgid:\t7\n":    true,
		"Name:\ta\nPid:\t7\nNSpid:\t7\t7\nNSpgid:\t7\n": false,
		"Name:\ta\nPid:\t7\nNSpid:\t9\nNSpgid:\t7\n":    false,
		"Name:\ta\nPid:\t7\nNSpid:\t7 9\n":              false,
		"Name:\ta\nPid:\t7\n":                           false,
		"":                                              false,
	} {
		if got := onePid([]byte(status), "7"); got != want {
			t.Errorf("%q: got %v, want %v", status, got, want)
		}
	}
}

func TestAGuardOnANetworkFilesystemShowsNothing(t *testing.T) {
	g := madeGuard(t)
	was := networkFilesystem
	defer func() { networkFilesystem = was }()
	networkFilesystem = func(f *os.File) (string, error) {
		if f.Name() != g.Path {
			return "", nil
		}
		return "of another machine", nil
	}
	if got := lookGuard(g); got.free || !strings.Contains(got.words, "network filesystem (of another machine)") {
		t.Errorf("got %+v", got)
	}
}

func TestHowProcIsMounted(t *testing.T) {
	const other = "22 1 8:1 / / rw - ext4 /dev/sda1 rw,hidepid=2\n"
	for name, c := range map[string]struct {
		mounts string
		hides  bool
	}{
		"as usual":              {other + "23 22 0:21 / /proc rw,relatime - proc proc rw\n", false},
		"with tags":             {"23 22 0:21 / /proc rw shared:5 master:1 - proc proc rw\n", false},
		"hiding nothing":        {"23 22 0:21 / /proc rw - proc proc rw,hidepid=0\n", false},
		"hiding nothing, newer": {"23 22 0:21 / /proc rw - proc proc rw,hidepid=off\n", false},
		"noaccess":              {"23 22 0:21 / /proc rw - proc proc rw,hidepid=1\n", true},
		"invisible":             {"23 22 0:21 / /proc rw - proc proc rw,gid=5,hidepid=invisible\n", true},
		"ptraceable":            {"23 22 0:21 / /proc rw - proc proc rw,hidepid=ptraceable,subset=pid\n", true},
		"of a later kernel":     {"23 22 0:21 / /proc rw - proc proc rw,hidepid=more\n", true},
		"another proc hides":    {"23 22 0:21 / /proc rw - proc proc rw\n24 22 0:22 / /x rw - proc proc rw,hidepid=2\n", false},
		"covered by mine":       {"24 22 0:22 / /proc rw - proc proc rw\n23 22 0:21 / /proc rw - proc proc rw,hidepid=2\n", true},
		"not listed":            {other, true},
		"something else":        {"23 22 0:21 / /proc rw - tmpfs proc rw\n", true},
		"cut off":               {"23 22 0:21 / /proc rw - proc\n", true},
		"nothing":               {"", true},
	} {
		if err := hidden(c.mounts, "0:21"); (err != nil) != c.hides {
			t.Errorf("%s: got %v, want hiding %v", name, err, c.hides)
		}
	}
}

// A kernel without time namespaces is no process whose link cannot be read.
func TestATimeNamespaceThatIsMissing(t *testing.T) {
	for name, c := range map[string]struct {
		files []string
		want  string
	}{
		"a kernel without":      {[]string{"ns/pid"}, "none"},
		"a link that is hidden": {[]string{"ns/pid", "timens_offsets"}, ""},
		"no links at all":       {nil, ""},
		"a link of no kind":     {[]string{"ns/pid", "ns/time"}, ""},
	} {
		p := newFakeProc(t)
		for _, f := range c.files {
			p.write(f, "")
		}
		if got := timeNamespace(p.root); got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
	if got := Self().TimeNamespace; got != "none" && !strings.HasPrefix(got, "time:[") {
		t.Errorf("mine is %q", got)
	}
}

func BenchmarkJudge(b *testing.B) {
	me := Self()
	gone := *me
	gone.PID = 1 << 22
	guard := madeGuard(b)
	for name, c := range map[string]struct {
		id    *Identity
		guard *Guard
		want  Standing
	}{
		"alive": {me, nil, Alive}, "gone": {&gone, nil, Gone}, "gone-with-guard": {&gone, guard, Gone},
		"other-host": {&Identity{Hostname: "other"}, nil, Unknown},
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if v := Judge(c.id, c.guard, me); v.Standing != c.want {
					b.Fatal(v)
				}
			}
		})
	}
}
