package main

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/swampd/swampd/internal/testserver"
)

// wantLine wants a line of doctor's table with these words, in this order.
func (r *result) wantLine(words ...string) {
	r.t.Helper()
next:
	for line := range strings.SplitSeq(r.out, "\n") {
		for _, w := range words {
			i := strings.Index(line, w)
			if i < 0 {
				continue next
			}
			line = line[i+len(w):]
		}
		return
	}
	r.t.Errorf("%s: no line with %q:\n%s", r.command, words, r.out)
}

func TestDoctorLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	missing := filepath.Join(c.base, "missing")
	r := c.ok("doctor", missing)
	r.wantLine("note", "store", "there is no directory "+missing+" yet")
	r.wantLine("swampd init " + missing)
	if _, err := os.Stat(missing); err == nil {
		t.Error("doctor made the directory")
	}
	dir := c.mkdir("there")
	r = c.ok("doctor", dir)
	r.wantLine("ok", "store", dir+" answers")
	r.wantLine("note", "datastore", "there is none here yet")
	r.wantLine("ok", "abilities", "all 9 checks passed")
	err := filepath.WalkDir(dir, func(p string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			t.Errorf("doctor left %s behind", p)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	c.ok("init", dir)
	c.sound(dir)
	c.ok("doctor", dir).wantLine("ok", "writer", "nobody has written yet")
}

func TestDoctorSeesADirectoryThatIsNone(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	file := c.file("file", "x")
	c.run("doctor", file+"/store").wantCode(1).wantLine("FAILED", "store", "not a directory")
	c.run("doctor", file).wantCode(1).wantLine("FAILED", "store", "no directory")
}

func TestDoctorTellsOfAClockThatIsWrong(t *testing.T) {
	t.Parallel()
	srv := testserver.GCS(t)
	p := srv.Proxy(t)
	c := newCLI(t).use(srv.ProxyURL(t, p, srv.NewBucket(t)))
	c.ok("doctor").wantLine("ok", "clock", "agree")
	p.Inject(testserver.Fault{EditAnswer: func(a *http.Response) {
		if date, err := http.ParseTime(a.Header.Get("Date")); err == nil {
			a.Header.Set("Date", date.Add(-2*time.Hour).Format(http.TimeFormat))
		}
	}})
	c.ok("doctor").wantLine("note", "clock", "2 h 00 min behind")
}
