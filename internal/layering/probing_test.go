package layering

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// probes are the ways to look at another process, or to signal one by its pid.
// Processes are judged by writer.Judge alone: a second opinion would be one that
// forgets a rule.
var probes = map[string][]string{
	"os": {"FindProcess"},
	"syscall": {
		"Kill", "Tgkill", "SYS_KILL", "SYS_TKILL", "SYS_TGKILL", "SYS_PTRACE", "SYS_PIDFD_OPEN", "SYS_PIDFD_SEND_SIGNAL",
		"Getpgid", "Getsid", "Getpriority", "PtraceAttach", "PtraceSeize",
		"OpenProcess", "GetProcessTimes", "CreateToolhelp32Snapshot", "Process32First",
	},
	"golang.org/x/sys/unix": {
		"Kill", "Tgkill", "SYS_KILL", "SYS_TKILL", "SYS_TGKILL", "SYS_PTRACE", "SYS_PIDFD_OPEN", "SYS_PIDFD_SEND_SIGNAL",
		"Getpgid", "Getsid", "Getpriority", "PtraceAttach", "PtraceSeize", "SchedGetaffinity", "Prlimit",
		"PidfdOpen", "PidfdSendSignal", "PidfdGetfd", "ProcessVMReadv", "SysctlKinfoProc", "SysctlKinfoProcSlice",
	},
	"golang.org/x/sys/windows": {
		"OpenProcess", "GetProcessTimes", "GetExitCodeProcess", "EnumProcesses", "CreateToolhelp32Snapshot",
		"Process32First", "GetPriorityClass", "QueryFullProcessImageName",
	},
}

// programs and libraries that do it for others.
var probers = []string{"kill", "pkill", "killall", "ps", "pgrep", "pidof", "lsof", "fuser", "tasklist", "taskkill"}
var proberModules = []string{"gopsutil", "go-ps", "prometheus/procfs", "tklauser/ps"}

// findProbes lists what a file does to other processes. Its own entries in /proc
// are not among it.
func findProbes(t *testing.T, name string, src any) (found []string) {
	t.Helper()
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, name, src, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	say := func(at token.Pos, what string) { found = append(found, files.Position(at).String()+": "+what) }
	imports := map[string]string{} // name in this file → path
	for _, i := range file.Imports {
		path, _ := strconv.Unquote(i.Path.Value)
		for _, m := range proberModules {
			if strings.Contains(path, m) {
				say(i.Pos(), path)
			}
		}
		as := path[strings.LastIndexByte(path, '/')+1:]
		if i.Name != nil {
			as = i.Name.Name
		}
		imports[as] = path
		if as == "." && probes[path] != nil {
			say(i.Pos(), "a dot import of "+path)
		}
	}
	selected := func(e ast.Expr) (path, sel string) {
		if s, ok := e.(*ast.SelectorExpr); ok {
			if x, ok := s.X.(*ast.Ident); ok {
				return imports[x.Name], s.Sel.Name
			}
		}
		return "", ""
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.SelectorExpr:
			if path, sel := selected(n); slices.Contains(probes[path], sel) {
				say(n.Pos(), path+"."+sel)
			}
		case *ast.CallExpr:
			path, sel := selected(n.Fun)
			if zero := len(n.Args) == 1 && text(n.Args[0]) == "0"; zero && sel == "Signal" && (path == "syscall" || strings.HasSuffix(path, "/unix")) {
				say(n.Pos(), "signal 0")
			}
			if path == "os/exec" && len(n.Args) > 0 {
				for _, arg := range n.Args {
					if s, err := strconv.Unquote(text(arg)); err == nil && slices.Contains(probers, filepath.Base(s)) {
						say(n.Pos(), "the program "+s)
					}
				}
			}
		case *ast.BasicLit:
			s, err := strconv.Unquote(n.Value)
			if n.Kind != token.STRING || err != nil {
				return true
			}
			own := strings.HasPrefix(s, "/proc/self/") || strings.HasPrefix(s, "/proc/sys/") || s == "/proc/self"
			if (s == "/proc" || s == "proc" || strings.Contains(s, "/proc/")) && !own || strings.HasPrefix(s, "kern.proc") {
				say(n.Pos(), s)
			}
		}
		return true
	})
	return found
}

func text(e ast.Expr) string {
	if l, ok := e.(*ast.BasicLit); ok {
		return l.Value
	}
	return ""
}

func TestOnlyTheJudgeLooksAtProcesses(t *testing.T) {
	root := filepath.FromSlash("../..")
	files, judges := 0, 0
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			_, other := os.Stat(filepath.Join(path, "go.mod"))
			// childproc is for tests alone: TestTestPackagesStayInTests.
			if name := d.Name(); path != root && (other == nil || name == "testdata" || name == "childproc" || strings.HasPrefix(name, ".")) {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		files++
		found := findProbes(t, path, nil)
		if rel, _ := filepath.Rel(root, path); strings.HasPrefix(filepath.ToSlash(rel), "writer/judge") {
			judges += len(found)
			return nil
		}
		for _, f := range found {
			t.Errorf("%s is for writer.Judge alone to use", f)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if files < 100 || judges < 5 {
		t.Errorf("%d files were read, and the judge looks in %d places: this test has lost its subject", files, judges)
	}
}

func TestProbesAreFound(t *testing.T) {
	for src, want := range map[string]int{
		`import "syscall"; var _ = syscall.Kill(1, 0)`:                                         1,
		`import s "golang.org/x/sys/unix"; var f = s.Kill`:                                     1,
		`import . "golang.org/x/sys/unix"; var f = Kill`:                                       1,
		`import "golang.org/x/sys/windows"; var f = windows.OpenProcess`:                       1,
		`import "os"; var p, _ = os.FindProcess(1)`:                                            1,
		`import "syscall"; func f(p interface{ Signal(any) }) { p.Signal(syscall.Signal(0)) }`: 1,
		`import "os"; import "fmt"; var b, _ = os.ReadFile(fmt.Sprintf("/proc/%d/stat", 1))`:   1,
		`import "path/filepath"; var p = filepath.Join("/proc", "1")`:                          1,
		`import "path/filepath"; var p = filepath.Join("/", "proc", "1")`:                      1,
		`import "os/exec"; var c = exec.Command("/bin/ps", "-p", "1")`:                         1,
		`import "os/exec"; var c = exec.CommandContext(nil, "sh", "-c", "kill")`:               1,
		`import "github.com/shirou/gopsutil/v4/process"; var f = process.PidExists`:            1,
		`import "golang.org/x/sys/unix"; var p, _ = unix.SysctlKinfoProc("kern.proc.pid")`:     2,
		`import "os"; var p = os.Getpid(); var s, _ = os.Readlink("/proc/self/ns/pid")`:        0,
		`import "os/exec"; func f(c *exec.Cmd) { c.Process.Kill() }`:                           0,
		`var s = "a process"; type x struct{ Kill int }; var y = x{}.Kill`:                     0,
	} {
		if got := findProbes(t, "probe.go", "package p; "+src); len(got) != want {
			t.Errorf("%s: got %q, want %d", src, got, want)
		}
	}
}
