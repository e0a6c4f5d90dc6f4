package top

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/hasplock/hasp"
)

// Options are what a screen needs beside the watch.
type Options struct {
	Every time.Duration // between two looks
	In    io.Reader     // the terminal
	Out   io.Writer

	Clean func(string) string                                          // makes a foreign text safe to show
	Ask   func(ctx context.Context, q hasp.Queue, reason string) error // asks the holders for the lock; returns when they have given it back
}

// Run shows the screen until the user leaves it, or ctx ends, and gives the terminal back as it was, also
// after a panic. A store that does not answer does not end it: the last look stays, with its age.
func Run(ctx context.Context, w *Watch, o Options) error {
	s := &screen{ctx: ctx, watch: w, Options: o, width: 80, height: 24}
	p := tea.NewProgram(s, tea.WithInput(o.In), tea.WithOutput(o.Out), tea.WithoutSignalHandler())
	// Not tea.WithContext: where that context ends, bubbletea closes the terminal's reader while its
	// goroutine still reads, a data race. A message to quit has it wait for that goroutine first.
	stop := context.AfterFunc(ctx, p.Quit)
	defer stop()
	if _, err := p.Run(); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}

// screen is the model: bubbletea calls its methods one at a time.
type screen struct {
	ctx   context.Context
	watch *Watch
	Options

	width, height int
	look          Look
	looked        bool // at least once
	failed        error
	failedSince   time.Time

	order    order
	selected string // the name, or in an opened queue the entry's id
	first    int    // the first row that is shown
	opened   string // the name whose queue is shown; "" is the list
	action   *action
	withdraw context.CancelFunc // of the request under way; nil: there is none
	status   string
}

// The messages.
type (
	looked struct {
		look Look
		err  error
	}
	lookAgain struct{}
	done      struct {
		status string
		asked  bool // it was a request for the lock
	}
)

// Init begins to look.
func (s *screen) Init() tea.Cmd { return s.lookOnce }

func (s *screen) lookOnce() tea.Msg {
	l, err := s.watch.Look(s.ctx)
	return looked{l, err}
}

// Update takes in what has happened. There is one look under way at any time.
func (s *screen) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		if msg.Width > 0 && msg.Height > 0 {
			s.width, s.height = msg.Width, msg.Height
		}
	case looked:
		s.take(msg)
		return s, tea.Tick(s.Every, func(time.Time) tea.Msg { return lookAgain{} })
	case lookAgain:
		return s, s.lookOnce
	case done:
		s.status = msg.status
		if msg.asked {
			s.withdraw = nil
		}
	case tea.PasteMsg:
		if s.action != nil && !s.action.sure {
			s.action.add(msg.Content)
		}
	case tea.KeyPressMsg:
		return s, s.key(msg)
	}
	return s, nil
}

func (s *screen) take(l looked) {
	if l.err != nil {
		if s.failed == nil {
			s.failedSince = time.Now()
		}
		s.failed = l.err
		return
	}
	s.failed, s.look, s.looked = nil, l.look, true
	s.order.sort(s.look.Locks, s.look.Time)
}

// queue is the one that is opened.
func (s *screen) queue() (hasp.Queue, bool) {
	for _, l := range s.look.Locks {
		if l.Name == s.opened {
			return l.Queue, true
		}
	}
	return hasp.Queue{Name: s.opened}, false
}

// rows are the keys of what can be selected: names, or the ids of a queue's entries.
func (s *screen) rows() (keys []string) {
	if s.opened == "" {
		for _, l := range s.look.Locks {
			keys = append(keys, l.Name)
		}
		return keys
	}
	q, _ := s.queue()
	for _, e := range entries(q) {
		keys = append(keys, e.ID)
	}
	return keys
}

func entries(q hasp.Queue) []hasp.Entry {
	return append(append([]hasp.Entry(nil), q.Holders...), q.Waiters...)
}

// entry is the selected one of the opened queue.
func (s *screen) entry() (hasp.Entry, bool) {
	q, _ := s.queue()
	current := s.current()
	for _, e := range entries(q) {
		if e.ID == current {
			return e, true
		}
	}
	return hasp.Entry{}, false
}

// ask and evict run beside the screen, and say how it went.
func (s *screen) ask(q hasp.Queue, reason string) tea.Cmd {
	s.status = fmt.Sprintf("asked for %q, and wait for its holders; a withdraws that", s.Clean(q.Name))
	var ctx context.Context
	ctx, s.withdraw = context.WithCancel(s.ctx)
	return func() tea.Msg {
		err := s.Ask(ctx, q, reason)
		switch {
		case ctx.Err() != nil:
			return done{"the request is withdrawn", true}
		case err != nil:
			return done{"not given back: " + s.Clean(err.Error()), true}
		}
		return done{fmt.Sprintf("%q was given back", s.Clean(q.Name)), true}
	}
}

func (s *screen) evict(name string, e hasp.Entry, reason string) tea.Cmd {
	return func() tea.Msg {
		ctx, cancel := context.WithTimeout(s.ctx, s.watch.Bound)
		defer cancel()
		err := s.watch.Client.Evict(ctx, name, e.ID, reason)
		switch {
		case errors.Is(err, hasp.ErrNotHeld):
			return done{status: "the entry has just gone by itself"}
		case err != nil:
			return done{status: "not evicted: " + s.Clean(err.Error())}
		}
		return done{status: fmt.Sprintf("took %q from %s", s.Clean(name), s.Clean(e.Owner.String()))}
	}
}
