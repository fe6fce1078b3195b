package writer

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

var here = system{namespaces: true, process: lookProcess, guard: lookGuard}

func lookProcess(pid int, me *Identity) sighting {
	p := procfs{root: "/proc", kill: func(pid int) error { return unix.Kill(pid, 0) }, hides: hidesProcesses}
	if err := p.showsMe(me); err != nil {
		return blind("/proc is not to be trusted: %v", err)
	}
	return p.look(pid)
}

func blind(format string, args ...any) sighting {
	return sighting{words: fmt.Sprintf(format, args...)}
}

// procfs is how processes are looked at, with seams for what cannot be had at
// will: a process that comes or goes between two steps.
type procfs struct {
	root  string
	kill  func(pid int) error // kill(pid, 0)
	hides func() error        // why an entry may be missing of a process that exists
}

// showsMe: /proc is a real one and of my own pid namespace, where pids mean what
// they mean to kill. In that of an outer namespace /proc/self would have another
// number, or by chance the same: NSpid then has several.
func (p procfs) showsMe(me *Identity) error {
	var is unix.Statfs_t
	if err := unix.Statfs(p.root, &is); err != nil || is.Type != unix.PROC_SUPER_MAGIC {
		return fmt.Errorf("it is no procfs (%v)", err)
	}
	pid := strconv.Itoa(os.Getpid())
	if self, err := os.Readlink(filepath.Join(p.root, "self")); err != nil || self != pid || me.PID != os.Getpid() {
		return fmt.Errorf("/proc/self is %s, and this is process %s (%v)", word(self), pid, err)
	}
	if ns, err := os.Readlink(filepath.Join(p.root, "self/ns/pid")); err != nil || ns != me.PIDNamespace {
		return fmt.Errorf("this process is in %s, not in %s (%v)", word(ns), word(me.PIDNamespace), err)
	}
	status, err := os.ReadFile(filepath.Join(p.root, "self/status"))
	if err != nil {
		return err
	}
	if !onePid(status, pid) {
		return errors.New("it is not that of this pid namespace")
	}
	stat, err := readStat(func(name string) ([]byte, error) { return os.ReadFile(filepath.Join(p.root, name)) }, "self/stat", os.Getpid())
	if err == nil && stat.start != me.StartTime {
		err = fmt.Errorf("this process began at %s, not at %s", stat.start, word(me.StartTime))
	}
	return err
}

// onePid: seen from this /proc, the process is in no inner pid namespace.
func onePid(status []byte, pid string) bool {
	_, rest, found := bytes.Cut(status, []byte("\nNSpid:"))
	pids, _, _ := bytes.Cut(rest, []byte("\n"))
	f := strings.Fields(string(pids))
	return found && len(f) == 1 && f[0] == pid
}

// looks bounds how often a pid is looked at that changes under the look.
const looks = 5

func (p procfs) look(pid int) sighting {
	var s sighting
	for range looks {
		var sure bool
		if s, sure = p.lookOnce(pid); sure {
			break
		}
	}
	return s
}

// lookOnce is not sure where two steps contradict each other, as they do when
// the process ends, or another gets its pid, in between.
func (p procfs) lookOnce(pid int) (s sighting, sure bool) {
	// What is read below this directory is of one process: when it ends, the
	// directory is dead, and a later process with the pid does not show in it.
	dir, err := os.OpenRoot(filepath.Join(p.root, strconv.Itoa(pid)))
	if vanished(err) {
		return p.notThere(pid)
	}
	if err != nil {
		return blind("%v", err), true
	}
	defer dir.Close()
	stat, err := readStat(dir.ReadFile, "stat", pid)
	if vanished(err) {
		return blind("it ended while it was looked at"), false
	}
	if err != nil {
		return blind("%v", err), true
	}
	s = sighting{presence: present, start: stat.start, words: fmt.Sprintf("its state is %s", stat.state)}
	switch {
	case !stat.dead():
		return s, true
	case stat.threads == 1: // itself
		s.dead = true
		s.words += ", it has ended and its parent has not taken note"
		return s, true
	case stat.threads == 0: // its parent takes note, or a thread of it becomes another program, under the same pid
		return blind("it was changing while it was looked at"), false
	}
	return lookAtThreads(dir, pid, s)
}

// lookAtThreads is for a process whose main thread has ended and which still has
// other threads. It is dead only if these have ended too, and none came while
// they were looked at.
func lookAtThreads(dir *os.Root, pid int, s sighting) (sighting, bool) {
	before, err := threads(dir)
	if err != nil {
		return blind("its threads: %v", err), !vanished(err)
	}
	for _, tid := range before {
		stat, err := readStat(dir.ReadFile, fmt.Sprintf("task/%d/stat", tid), tid)
		if err != nil {
			return blind("its thread %d: %v", tid, err), !vanished(err)
		}
		if !stat.dead() {
			s.words += fmt.Sprintf(" for its main thread, but thread %d lives (state %s)", tid, stat.state)
			return s, true
		}
	}
	// All that were listed are dead and stay so. Are they all there is?
	stat, err := readStat(dir.ReadFile, "stat", pid)
	if err != nil {
		return blind("%v", err), !vanished(err)
	}
	after, err := threads(dir)
	if err != nil {
		return blind("its threads: %v", err), !vanished(err)
	}
	if stat.threads != len(before) || !slices.Equal(before, after) || stat.start != s.start {
		return blind("its threads were changing while they were looked at"), false
	}
	s.dead = true
	s.words += fmt.Sprintf(", its %d threads have all ended", len(before))
	return s, true
}

func threads(dir *os.Root) ([]int, error) {
	d, err := dir.Open("task")
	if err != nil {
		return nil, err
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	tids := make([]int, len(names))
	for i, name := range names {
		if tids[i], err = strconv.Atoi(name); err != nil {
			return nil, err
		}
	}
	slices.Sort(tids)
	return tids, nil
}

// notThere: no entry alone proves nothing, nor does kill.
func (p procfs) notThere(pid int) (sighting, bool) {
	entry := fmt.Sprintf("/proc/%d is absent", pid)
	switch err := p.kill(pid); {
	case err == nil:
		return blind("%s, but kill(%d, 0) says that it exists", entry, pid), false
	case errors.Is(err, unix.EPERM):
		return blind("%s, but kill(%d, 0) says EPERM: it exists and is hidden", entry, pid), false
	case !errors.Is(err, unix.ESRCH):
		return blind("%s, but kill(%d, 0) says %v", entry, pid, err), true
	}
	if err := p.hides(); err != nil {
		return blind("%s, which may be because %v", entry, err), true
	}
	return sighting{presence: absent, words: fmt.Sprintf("%s and kill(%d, 0) says ESRCH", entry, pid)}, true
}

// hidesProcesses looks up how /proc is mounted.
func hidesProcesses() error {
	var proc unix.Stat_t
	if err := unix.Stat("/proc", &proc); err != nil {
		return fmt.Errorf("/proc cannot be looked at: %w", err)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	return hidden(string(mounts), fmt.Sprintf("%d:%d", unix.Major(uint64(proc.Dev)), unix.Minor(uint64(proc.Dev))))
}

// hidden says whether the procfs with this device number hides processes. All
// its mounts have the same options, since these belong to the device.
func hidden(mounts, device string) error {
	found := false
	for line := range strings.Lines(mounts) {
		mount, super, ok := strings.Cut(strings.TrimSpace(line), " - ")
		if f := strings.Fields(mount); !ok || len(f) < 3 || f[2] != device {
			continue
		}
		f := strings.Fields(super)
		if len(f) < 3 || f[0] != "proc" {
			return errors.New("/proc is mounted in a way that is not understood")
		}
		found = true
		for option := range strings.SplitSeq(f[2], ",") {
			if how, ok := strings.CutPrefix(option, "hidepid="); ok && how != "0" && how != "off" {
				return fmt.Errorf("/proc is mounted with hidepid=%s", word(how))
			}
		}
	}
	if !found {
		return errors.New("it does not show how /proc is mounted")
	}
	return nil
}

// vanished: that which was looked at is not there, or not any more.
func vanished(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH)
}

// taskStat is what /proc/PID/stat says of a process, or of one of its threads.
type taskStat struct {
	state   string
	start   string
	threads int // of the whole process; 0 for one that is just being removed
}

// dead: it runs no code any more. (Stopped, traced and asleep for ever is alive.)
func (s taskStat) dead() bool { return s.state == "Z" || s.state == "X" || s.state == "x" }

func readStat(read func(string) ([]byte, error), name string, pid int) (s taskStat, err error) {
	data, err := read(name)
	if err != nil {
		return s, err
	}
	// The name of the program may hold anything: counting begins after it.
	end := bytes.LastIndexByte(data, ')')
	f := strings.Fields(string(data[end+1:]))
	s.start = startTime(data)
	if end < 0 || !bytes.HasPrefix(data, []byte(strconv.Itoa(pid)+" (")) || s.start == "" || len(f[0]) != 1 {
		return s, fmt.Errorf("%s is not understood", name)
	}
	s.state = f[0]
	if s.threads, err = strconv.Atoi(f[17]); err != nil {
		return s, fmt.Errorf("%s is not understood: %w", name, err)
	}
	return s, nil
}
