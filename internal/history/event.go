package history

import "fmt"

// event is one line of a recorded file. An operation is spread over several, each
// written when it happened, so that a process that is killed has left what it knew.
type event struct {
	Op   string `json:"op"`
	At   Time   `json:"at"`
	What what   `json:"what"`

	// With called only.
	Client   string `json:"client,omitempty"`
	Name     string `json:"name,omitempty"`
	Units    int64  `json:"units,omitempty"`
	Capacity int64  `json:"capacity,omitempty"`

	Outcome Outcome `json:"outcome,omitempty"` // with answered and ended
	Token   uint64  `json:"token,omitempty"`   // with answered
	Seq     uint64  `json:"seq,omitempty"`     // with answered
	Asked   bool    `json:"asked,omitempty"`   // with lost: Held() said so
	Note    string  `json:"note,omitempty"`
}

type what string

const (
	called    what = "called"    // acquire is about to be called
	waiting   what = "waiting"   // the store has put it into the queue
	requeued  what = "requeued"  // the place in the queue is lost; it asks again
	answered  what = "answered"  // acquire has returned
	held      what = "held"      // Held() said yes; At is from before it was asked
	lost      what = "lost"      // the loss was noticed
	releasing what = "releasing" // release is about to be called
	ended     what = "ended"     // release has returned
)

// fold puts operations together from their events. Those of one operation are in order,
// called first; operations may be mixed.
func fold(events []event) (History, error) {
	var h History
	index := map[string]int{}
	for _, e := range events {
		i, known := index[e.Op]
		if known == (e.What == called) {
			return nil, fmt.Errorf("history: operation %q: %q out of order", e.Op, e.What)
		}
		if !known {
			i = len(h)
			index[e.Op] = i
			h = append(h, Operation{ID: e.Op})
		}
		if err := h[i].apply(e); err != nil {
			return nil, err
		}
	}
	return h, nil
}

func (o *Operation) apply(e event) error {
	twice := false
	switch e.What {
	case called:
		o.Client, o.Name, o.Claim, o.Call = e.Client, e.Name, Claim{e.Units, e.Capacity}, e.At
	case waiting:
		o.Waiting = e.At
	case requeued:
		o.Requeued = true
	case answered:
		twice = o.Return > 0
		o.Return, o.Outcome, o.Token, o.Seq = e.At, e.Outcome, e.Token, e.Seq
	case held:
		o.Asked, o.LastHeld = true, max(o.LastHeld, e.At)
	case lost:
		o.Asked = o.Asked || e.Asked
		if o.Lost == 0 {
			o.Lost = e.At
		}
	case releasing:
		twice = o.ReleaseCall > 0
		o.ReleaseCall = e.At
	case ended:
		twice = o.ReleaseReturn > 0
		o.ReleaseReturn, o.Release = e.At, e.Outcome
	default:
		return fmt.Errorf("history: operation %q: %q is no event", o.ID, e.What)
	}
	if twice {
		// An operation is one hold: a second release would hide the first one's answer.
		return fmt.Errorf("history: operation %q: %q twice", o.ID, e.What)
	}
	if e.Note != "" {
		if o.Note != "" {
			o.Note += "; "
		}
		o.Note += e.Note
	}
	return nil
}

// events is the inverse of fold, for one operation.
func (o *Operation) events() []event {
	all := []event{{
		Op: o.ID, At: o.Call, What: called, Note: o.Note,
		Client: o.Client, Name: o.Name, Units: o.Claim.Units, Capacity: o.Claim.Capacity,
	}}
	add := func(e event) {
		if e.At > 0 {
			e.Op = o.ID
			all = append(all, e)
		}
	}
	add(event{At: o.Waiting, What: waiting})
	if o.Requeued {
		add(event{At: max(o.Waiting, o.Call), What: requeued})
	}
	add(event{At: o.Return, What: answered, Outcome: o.Outcome, Token: o.Token, Seq: o.Seq})
	add(event{At: o.LastHeld, What: held})
	add(event{At: o.Lost, What: lost, Asked: o.Asked})
	add(event{At: o.ReleaseCall, What: releasing})
	add(event{At: o.ReleaseReturn, What: ended, Outcome: o.Release})
	return all
}
