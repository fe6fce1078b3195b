package main

import (
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
	follow string // the engine's phase whose figures are ours; "" = none
	done   atomic.Int64
	total  atomic.Int64
	phase  atomic.Pointer[string] // what the engine is at, if that says more than what

	// rate is bytes per second over the last seconds; owned by the drawing
	// goroutine's ticks, read by the bar's.
	rate atomic.Int64

	once   sync.Once
	quit   chan struct{}
	joined chan struct{} // nil if nothing is drawn
}

func (a *app) meter(what string) *meter {
	m := &meter{what: what, quit: make(chan struct{})}
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

func (m *meter) add(n int64)    { m.done.Add(n) }
func (m *meter) expect(n int64) { m.total.Add(n) }

// engine is a datastore.Options.Progress.
func (m *meter) engine(p datastore.Progress) {
	if p.Phase == m.follow {
		m.done.Store(p.Done)
		m.total.Store(p.Total)
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
	began := time.Now()
	select {
	case <-m.quit:
		return
	case <-delay.C:
	}
	container := mpb.New(mpb.WithOutput(a.errOut), mpb.WithRefreshRate(meterTick), mpb.WithWidth(barWidth))
	bar := container.New(m.total.Load(), mpb.BarStyle(),
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
	last, lastDone := began, int64(0)
	speed := 0.0
	for {
		now, done := time.Now(), m.done.Load()
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
	if p := m.phase.Load(); p != nil && m.done.Load() >= m.total.Load() && *p != "" {
		return m.what + " (" + *p + ")"
	}
	return m.what
}

// figures is "1.2 GiB of 4.0 GiB, 120 MiB/s, 24 s left", as far as it is known.
func (m *meter) figures() string {
	done, total, rate := m.done.Load(), m.total.Load(), m.rate.Load()
	parts := []string{size(done)}
	if total > 0 {
		parts[0] += " of " + size(total)
	}
	parts = append(parts, size(rate)+"/s")
	if left := total - done; total > 0 && left >= 0 && rate > 0 {
		parts = append(parts, took(time.Duration(float64(left)/float64(rate)*float64(time.Second)).Round(time.Second))+" left")
	}
	return strings.Join(parts, ", ")
}
