package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/hasplock/hasp"
)

// The longest that acquire waits within one call, and its default. Agents give a call up after one
// or two minutes, some sooner.
const (
	waitMost    = 100 * time.Second
	waitDefault = 20 * time.Second
)

type acquireInput struct {
	Name        string   `json:"name" jsonschema:"what the lock is for, such as testdb, port/8080 or git"`
	Holder      string   `json:"holder,omitempty" jsonschema:"who you are among the agents that share this server; the same in each call; default: main"`
	Note        string   `json:"note,omitempty" jsonschema:"what you do under the lock, for those who wait"`
	WaitSeconds *float64 `json:"wait_seconds,omitempty" jsonschema:"for how long this call waits, at most 100; default 20. The place in the queue stays afterwards"`
}

type nameInput struct {
	Name   string `json:"name" jsonschema:"the lock's name"`
	Holder string `json:"holder,omitempty" jsonschema:"who you are, as in acquire; default: main"`
}

type lock struct {
	Name    string   `json:"name"`
	State   string   `json:"state" jsonschema:"held: you have the lock. waiting: you have a place in the queue. free, or taken by others"`
	Token   string   `json:"token,omitempty" jsonschema:"grows with each grant: what you write to may refuse a smaller one"`
	Place   int      `json:"place,omitempty" jsonschema:"1 is the next"`
	HeldBy  []person `json:"held_by,omitempty"`
	Waiting []person `json:"waiting,omitempty"`
	Message string   `json:"message"`
}

type person struct {
	Who   string    `json:"who"`
	Since time.Time `json:"since,omitzero" jsonschema:"when it asked for the lock"`
}

type locks struct {
	Locks []lock `json:"locks"`
}

func (d *desk) addTools(s *mcp.Server) {
	mcp.AddTool(s, &mcp.Tool{Name: "acquire", Description: "Take a lock, or a place in its queue. Returns within wait_seconds: state held, or waiting with your place and who holds it. " +
		"The place is kept: call acquire again with the same name and holder to go on waiting."}, d.acquire)
	mcp.AddTool(s, &mcp.Tool{Name: "release", Description: "Give back a lock that you hold, or leave its queue. An error says that you did not hold it to the end."}, d.release)
	mcp.AddTool(s, &mcp.Tool{Name: "who", Description: "Who holds a lock, since when and what for, and who waits."}, d.who)
	mcp.AddTool(s, &mcp.Tool{Name: "list", Description: "All locks that are held or waited for, and which of them you have."}, d.list)
}

func of(name, holder string) key { return key{name, cmp.Or(holder, "main")} }

func (d *desk) acquire(ctx context.Context, _ *mcp.CallToolRequest, in acquireInput) (*mcp.CallToolResult, lock, error) {
	wait := waitDefault
	if in.WaitSeconds != nil {
		wait = time.Duration(*in.WaitSeconds * float64(time.Second))
	}
	if wait < 0 || wait > waitMost {
		return nil, lock{}, fmt.Errorf("wait_seconds is from 0 to %.0f", waitMost.Seconds())
	}
	p := d.ask(of(in.Name, in.Holder), in.Note)
	switch err := d.await(ctx, p, wait); {
	case errors.Is(err, errWaiting):
		return nil, d.waiting(context.WithoutCancel(ctx), p), nil
	case err != nil:
		return nil, lock{}, err
	}
	return nil, d.held(p), nil
}

func (d *desk) held(p *place) lock {
	l := lock{Name: p.name, State: "held", Message: "you hold it: release it as soon as you are done"}
	if token := p.lease.Token(); token > 0 {
		l.Token = strconv.FormatUint(token, 10)
	}
	if d.maxHold > 0 {
		l.Message += fmt.Sprintf("; it is taken from you after %s", d.maxHold)
	}
	return l
}

func (d *desk) waiting(ctx context.Context, p *place) lock {
	q, at, err := d.queue(ctx, p.name, p)
	l := described(q)
	l.Name, l.State, l.Place = p.name, "waiting", at
	l.Message = "your place is kept: do other work, or call acquire again with the same name and holder"
	switch {
	case err != nil:
		l.Message += fmt.Sprintf(" (the store does not say who holds it: %v)", err)
	case !p.waits.Load():
		l.Message += "; another holder of this server is ahead of you"
	}
	return l
}

func (d *desk) release(ctx context.Context, _ *mcp.CallToolRequest, in nameInput) (*mcp.CallToolResult, lock, error) {
	p := d.find(of(in.Name, in.Holder))
	if p == nil {
		return nil, lock{}, fmt.Errorf("%s neither holds %q nor waits for it", of(in.Name, in.Holder).holder, in.Name)
	}
	if err := d.leave(ctx, p); err != nil {
		return nil, lock{}, err
	}
	return nil, lock{Name: in.Name, State: "free", Message: "given back"}, nil
}

func (d *desk) who(ctx context.Context, _ *mcp.CallToolRequest, in nameInput) (*mcp.CallToolResult, lock, error) {
	p := d.find(of(in.Name, in.Holder))
	q, at, err := d.queue(ctx, in.Name, p)
	if err != nil {
		return nil, lock{}, err
	}
	l := described(q)
	l.Name, l.Place = in.Name, at
	l.State, l.Message = d.stateOf(p, l)
	return nil, l, nil
}

// stateOf says what a holder has of a lock. It gives nothing up: only acquire and release tell of a
// loss for the last time.
func (d *desk) stateOf(p *place, l lock) (state, message string) {
	if p == nil {
		if len(l.HeldBy) == 0 {
			return "free", "nothing of it is yours"
		}
		return "taken", "nothing of it is yours"
	}
	select {
	case <-p.done:
	default:
		return "waiting", "you have a place in the queue"
	}
	switch {
	case p.err != nil:
		return "lost", p.err.Error()
	case !p.lease.Held():
		return "lost", p.lease.Err().Error()
	}
	return "held", "you hold it"
}

func (d *desk) list(ctx context.Context, _ *mcp.CallToolRequest, in struct {
	Holder string `json:"holder,omitempty" jsonschema:"who you are, as in acquire; default: main"`
}) (*mcp.CallToolResult, locks, error) {
	all := locks{Locks: []lock{}}
	for name, err := range d.client.Names(ctx, "") {
		if err != nil {
			return nil, all, err
		}
		_, l, err := d.who(ctx, nil, nameInput{name, in.Holder})
		if err != nil {
			return nil, all, err
		}
		all.Locks = append(all.Locks, l)
	}
	slices.SortFunc(all.Locks, func(a, b lock) int { return cmp.Compare(a.Name, b.Name) })
	return nil, all, nil
}

func described(q hasp.Queue) (l lock) {
	for _, e := range q.Holders {
		l.HeldBy = append(l.HeldBy, person{e.Owner.String(), e.Since})
	}
	for _, e := range q.Waiters {
		l.Waiting = append(l.Waiting, person{e.Owner.String(), e.Since})
	}
	return l
}
