//go:build unix

package fs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"

	"github.com/swampd/swampd/backend"
)

const (
	raceProcesses  = 8
	raceGoroutines = 3
)

// racers runs job in raceProcesses children and returns what they say. attr says
// what is special about the children, nil: nothing.
func racers(t *testing.T, j job, attr *syscall.SysProcAttr) []answer {
	t.Helper()
	var cs []*child
	for i := range raceProcesses {
		j.Seed = i
		cs = append(cs, startProgram(t, os.Args[0], j, attr))
	}
	var as []answer
	for _, c := range cs {
		a := c.end()
		if a.Err != "" {
			t.Errorf("a child was told %q", a.Err)
		}
		as = append(as, a)
	}
	return as
}

// inGoroutines runs f in raceGoroutines, each with the driver of the child.
func inGoroutines(j job, f func(d *Driver, g int, a *answer) error) answer {
	d, err := New(j.Root, &Options{FS: lazyFS{OS()}})
	a := answer{Wins: map[string]string{}, Replaced: map[backend.Version]int{}, Made: map[backend.Version]int{}}
	if err != nil {
		a.failed(err)
		return a
	}
	defer d.Close()
	var mu sync.Mutex
	var wg sync.WaitGroup
	for g := range raceGoroutines {
		wg.Go(func() {
			mine := answer{Wins: map[string]string{}, Replaced: map[backend.Version]int{}, Made: map[backend.Version]int{}}
			err := f(d, g, &mine)
			mu.Lock()
			defer mu.Unlock()
			a.failed(err)
			for k, v := range mine.Wins {
				a.Wins[k] = v
			}
			for v, n := range mine.Replaced {
				a.Replaced[v] += n
			}
			for v, n := range mine.Made {
				a.Made[v] += n
			}
		})
	}
	wg.Wait()
	return a
}

func raceCreates(j job) answer {
	return inGoroutines(j, func(d *Driver, g int, a *answer) error {
		for i := range j.Rounds {
			key := fmt.Sprintf("data/%03d/x", i)
			if i%2 == 1 {
				key = fmt.Sprintf("_control/%03d", i)
			}
			data := fmt.Sprintf("%s by %d.%d", key, j.Seed, g)
			_, err := d.Create(context.Background(), key, backend.Bytes([]byte(data)))
			if err == nil {
				if a.Wins[key] != "" {
					return fmt.Errorf("won %s twice", key)
				}
				a.Wins[key] = data
			} else if !errors.Is(err, backend.ErrExists) {
				return err
			}
		}
		return nil
	})
}

func TestRaceOfProcessesToCreate(t *testing.T) { raceToCreate(t, nil) }

func raceToCreate(t *testing.T, attr *syscall.SysProcAttr) {
	root := filepath.Join(memDir(t), "store")
	j := job{Do: "creates", Root: root, Rounds: 60}
	won := map[string][]string{}
	for _, a := range racers(t, j, attr) {
		for k, v := range a.Wins {
			won[k] = append(won[k], v)
		}
	}
	d := open(t, root, nil)
	if len(won) != j.Rounds {
		t.Errorf("%d keys have a winner, want %d", len(won), j.Rounds)
	}
	for k, w := range won {
		if len(w) != 1 {
			t.Errorf("%s has the winners %q", k, w)
		}
		holds(t, d, k, w[0])
	}
	noTemps(t, root)
}

func raceCounter(j job) answer {
	return inGoroutines(j, func(d *Driver, g int, a *answer) error {
		for done := 0; done < j.Rounds; {
			obj, err := d.Get(context.Background(), "_control/fence", backend.GetOptions{})
			if err != nil {
				return err
			}
			b, err := io.ReadAll(obj.Body)
			obj.Body.Close()
			if err != nil {
				return err
			}
			n, err := strconv.Atoi(string(b))
			if err != nil {
				return fmt.Errorf("read %q: %w", b, err)
			}
			_, err = d.Replace(context.Background(), "_control/fence", backend.Bytes(fmt.Append(nil, n+1)), obj.Version)
			switch {
			case err == nil:
				a.Replaced[obj.Version]++
				done++
			case !errors.Is(err, backend.ErrChanged):
				return err
			}
		}
		return nil
	})
}

func TestRaceOfProcessesToCount(t *testing.T) { raceToCount(t, nil) }

func raceToCount(t *testing.T, attr *syscall.SysProcAttr) {
	root := filepath.Join(memDir(t), "store")
	d := open(t, root, nil)
	create(t, d, "_control/fence", "0")
	j := job{Do: "counter", Root: root, Rounds: 25}
	total := 0
	replaced := map[backend.Version]int{}
	for _, a := range racers(t, j, attr) {
		for v, n := range a.Replaced {
			replaced[v] += n
			total += n
		}
	}
	for v, n := range replaced {
		if n != 1 {
			t.Errorf("version %s was replaced %d times", v, n)
		}
	}
	holds(t, d, "_control/fence", fmt.Sprint(total))
	if want := j.Rounds * raceGoroutines * raceProcesses; total != want {
		t.Errorf("%d replaces, want %d", total, want)
	}
	noTemps(t, root)
}

// raceLives creates, replaces, deletes and cleans, and notes which versions it
// made and replaced.
func raceLives(j job) answer {
	return inGoroutines(j, func(d *Driver, g int, a *answer) error {
		rng := rand.New(rand.NewPCG(uint64(j.Seed), uint64(g)))
		const key = "_control/x"
		for i := range j.Rounds {
			data := fmt.Appendf(nil, "%d.%d.%d", j.Seed, g, i)
			switch n := rng.IntN(20); {
			case n == 0:
				if err := d.Delete(context.Background(), []string{key}); err != nil {
					return err
				}
			case n == 1:
				if _, err := d.CleanUploads(context.Background(), 0); err != nil {
					return err
				}
			case n < 6:
				info, err := d.Create(context.Background(), key, backend.Bytes(data))
				if err == nil {
					a.Made[info.Version]++
				} else if !errors.Is(err, backend.ErrExists) && !errors.Is(err, backend.ErrConflict) {
					return err
				}
			default:
				obj, err := d.Get(context.Background(), key, backend.GetOptions{})
				if errors.Is(err, backend.ErrNotFound) {
					continue
				}
				if err != nil {
					return err
				}
				b, err := io.ReadAll(obj.Body)
				obj.Body.Close()
				if err != nil || bytes.Count(b, []byte{'.'}) != 2 {
					return fmt.Errorf("read %q: %w", b, err)
				}
				info, err := d.Replace(context.Background(), key, backend.Bytes(data), obj.Version)
				if err == nil {
					a.Replaced[obj.Version]++
					a.Made[info.Version]++
				} else if !errors.Is(err, backend.ErrChanged) && !errors.Is(err, backend.ErrConflict) {
					return err
				}
			}
		}
		return nil
	})
}

func TestRaceOfProcessesOverLives(t *testing.T) { raceOverLives(t, nil) }

func raceOverLives(t *testing.T, attr *syscall.SysProcAttr) {
	root := filepath.Join(memDir(t), "store")
	d := open(t, root, nil)
	create(t, d, "_control/neighbour", "neighbour")
	made, replaced := map[backend.Version]int{}, map[backend.Version]int{}
	for _, a := range racers(t, job{Do: "lives", Root: root, Rounds: 150}, attr) {
		for v, n := range a.Made {
			made[v] += n
		}
		for v, n := range a.Replaced {
			replaced[v] += n
		}
	}
	for v, n := range made {
		if n != 1 {
			t.Errorf("version %s was made %d times", v, n)
		}
	}
	for v, n := range replaced {
		if n != 1 || made[v] != 1 {
			t.Errorf("version %s was replaced %d times and made %d times", v, n, made[v])
		}
	}
	if len(made) < 100 {
		t.Errorf("only %d versions were made", len(made))
	}
	if err := d.Delete(t.Context(), []string{"_control/x"}); err != nil {
		t.Error(err)
	}
	if _, err := d.CleanUploads(t.Context(), 0); err != nil {
		t.Error(err)
	}
	absent(t, d, "_control/x")
	holds(t, d, "_control/neighbour", "neighbour")
	if got := files(t, filepath.Join(root, "_control")); len(got) != 2 {
		t.Errorf("%q are left, want the two files of the neighbour", got)
	}
}
