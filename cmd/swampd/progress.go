package main

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"

	"github.com/swampd/swampd/datastore"
)

const (
	meterDelay = time.Second            // shorter work shows nothing
	meterTick  = 200 * time.Millisecond // how often the rate is taken
	barWidth   = 30
)

// meter counts the work of a command, and draws it on standard error if people
// watch that and the work takes longer than meterDelay. Its goroutine is joined
// by stop.
type meter struct {
	what   string
	follow string // the engine's phase whose figures are bytes of ours; "" = none
	began  time.Time
	// counted is what this program saw done, told what the engine says; the
	// larger is shown, since the engine knows more in the middle of a large file
	// and nothing of what it does not report.
	counted, told atomic.Int64
	total         atomic.Int64
	phase         atomic.Pointer[string] // what the engine is at, if that says more than what

	// rate is bytes per second over the last seconds; owned by the drawing
	// goroutine's ticks, read by the bar's.
	rate atomic.Int64

	once   sync.Once
	quit   chan struct{}
	joined chan struct{} // nil if nothing is drawn
}

func (a *app) meter(what string) *meter {
	m := &meter{what: what, began: time.Now(), quit: make(chan struct{})}
	if a.errTerm && !a.json && !a.quiet {
		m.joined = make(chan struct{})
		go m.draw(a)
	}
	return m
}

// stop clears what was drawn. It may be called again.
func (m *meter) stop() {
	m.once.Do(func() {
		close(m.quit)
		if m.joined != nil {
			<-m.joined
		}
	})
}

func (m *meter) add(n int64)    { m.counted.Add(n) }
func (m *meter) expect(n int64) { m.total.Add(n) }
func (m *meter) done() int64    { return max(m.counted.Load(), m.told.Load()) }

// restart begins counting anew.
func (m *meter) restart() {
	m.counted.Store(0)
	m.told.Store(0)
}

// engine is a datastore.Options.Progress.
func (m *meter) engine(p datastore.Progress) {
	if p.Phase == m.follow {
		m.told.Store(p.Done)
		if p.Total > 0 {
			m.total.Store(p.Total)
		}
		return
	}
	m.phase.Store(&p.Phase)
}

// reader counts what is read from r.
func (m *meter) reader(r io.Reader) *countingReader { return &countingReader{r: r, m: m} }

type countingReader struct {
	r   io.Reader
	m   *meter
	err error // the last one, io.EOF included
}

func (c *countingReader) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.m.add(int64(n))
	c.err = err
	return n, err
}

func (m *meter) draw(a *app) {
	defer close(m.joined)
	delay := time.NewTimer(meterDelay)
	defer delay.Stop()
	select {
	case <-m.quit:
		return
	case <-delay.C:
	}
	container := mpb.New(mpb.WithOutput(a.errOut), mpb.WithRefreshRate(meterTick), mpb.WithWidth(barWidth))
	var style mpb.BarFillerBuilder = mpb.BarStyle()
	if m.total.Load() == 0 {
		style = mpb.NopStyle() // how much there is to do is not known
	}
	bar := container.New(m.total.Load(), style,
		mpb.PrependDecorators(decor.Any(func(decor.Statistics) string { return m.label() + " " })),
		mpb.AppendDecorators(decor.Any(func(decor.Statistics) string { return " " + m.figures() })))
	a.live.Store(container)
	defer func() {
		a.live.Store(nil)
		bar.Abort(true)
		container.Wait()
	}()
	ticker := time.NewTicker(meterTick)
	defer ticker.Stop()
	last, lastDone := m.began, int64(0)
	speed := 0.0
	for {
		now, done := time.Now(), m.done()
		if seconds := now.Sub(last).Seconds(); seconds > 0 {
			current := float64(done-lastDone) / seconds
			if weight := min(1, seconds/5); speed == 0 {
				speed = current
			} else {
				speed += weight * (current - speed)
			}
			m.rate.Store(int64(speed))
		}
		last, lastDone = now, done
		bar.SetTotal(max(m.total.Load(), done+1), false) // reaching it would end the bar
		bar.SetCurrent(done)
		select {
		case <-m.quit:
			return
		case <-ticker.C:
		}
	}
}

func (m *meter) label() string {
	if p := m.phase.Load(); p != nil && m.done() >= m.total.Load() && *p != "" {
		return m.what + " (" + *p + ")"
	}
	return m.what
}

// figures is "1.2 GiB of 4.0 GiB, 120 MiB/s, 24 s left", as far as it is known;
// where no bytes are counted, how long it has taken.
func (m *meter) figures() string {
	done, total, rate := m.done(), m.total.Load(), m.rate.Load()
	if done == 0 && total == 0 {
		return whole(time.Since(m.began)) + " so far"
	}
	parts := []string{size(done)}
	if total > 0 {
		parts[0] += " of " + size(total)
	}
	parts = append(parts, size(rate)+"/s")
	if left := total - done; left > 0 && rate > 0 {
		parts = append(parts, whole(time.Duration(float64(left)/float64(rate)*float64(time.Second)))+" left")
	}
	return strings.Join(parts, ", ")
}

// whole is a duration in whole seconds, at least one, for a line that changes
// all the time.
func whole(d time.Duration) string {
	d = max(d, time.Second).Round(time.Second)
	if d < time.Minute {
		return fmt.Sprintf("%d s", d/time.Second)
	}
	return took(d)
}
