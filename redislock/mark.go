package redislock

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/redislock/internal/redisconn"
)

// A server that was started again, emptied or promoted may have forgotten grants. Until each lease
// that it may have forgotten is over, it grants nothing: queue/mark.lua finds out and decides, in the
// script that would grant. Here is only where the mark is, and what people are told.

// mark is the key of the mark for a queue's key: one for each server. In a cluster a script may use
// the keys of one slot only, and a slot can move to another server: there is one for each slot.
func (q *queue) mark(key string) string {
	if q.conn.Topology() == redisconn.Cluster {
		return q.opts.Prefix + "mark:{" + slotTag(slotOf(key)) + "}"
	}
	return q.opts.Prefix + "mark"
}

// keys are the KEYS of a script on one name that may grant.
func (q *queue) keys(key string) []string {
	if q.opts.NoQuarantine {
		return []string{key}
	}
	return []string{key, q.mark(key)}
}

// closedText stands in the place of the holder while the server grants nothing.
func closedText(left time.Duration) string {
	return fmt.Sprintf("no client: the server may have forgotten locks, and grants none for another %s", left.Round(time.Millisecond))
}

// errClosed is for requests that cannot wait for the end of the quarantine in a queue.
func errClosed(answer []any) error {
	var left int64
	if len(answer) == 1 {
		left, _ = answer[0].(int64)
	}
	return fmt.Errorf("%w: the server may have forgotten locks, and grants none for another %s",
		driver.ErrRefused, (time.Duration(left) * time.Microsecond).Round(time.Millisecond))
}

// examineMark tells people what the mark says.
func (q *queue) examineMark(ctx context.Context, n redisconn.Node, x *redisconn.Examination) {
	const subject = "quarantine"
	switch {
	case q.opts.NoQuarantine:
		x.Add(driver.Bad, subject, "off: a server that has forgotten its locks grants them again at once", "leave out quarantine=off")
		return
	case q.conn.Topology() == redisconn.Cluster:
		x.Add(driver.Info, subject, "on, separately for each slot", "")
		return
	}
	text, _ := n.Do(ctx, "GET", q.opts.Prefix+"mark").Value.(string)
	var run string
	var longest, until, seconds, micro int64
	if _, err := fmt.Sscan(text, &run, &longest, &until); err != nil {
		x.Add(driver.Info, subject, "on; no lock was ever taken here", "")
		return
	}
	if now, _ := n.Do(ctx, "TIME").Value.([]any); len(now) == 2 {
		_, _ = fmt.Sscan(fmt.Sprint(now...), &seconds, &micro)
	}
	left := time.Duration(until-seconds*1e6-micro) * time.Microsecond
	lease := time.Duration(longest) * time.Microsecond
	switch {
	case run != x.Fields["run_id"]:
		x.Add(driver.Warn, subject, fmt.Sprintf("the server was started again, or promoted, since the last lock: from the next request on it grants none for %s", lease), "")
	case left > 0:
		x.Add(driver.Warn, subject, fmt.Sprintf("the server may have forgotten locks, and grants none for another %s", left.Round(time.Second)), "wait, or write its run id to hasp:new if you know better")
	default:
		x.Add(driver.Info, subject, fmt.Sprintf("on; after a restart the server grants nothing for %s, the longest TTL in use", lease), "")
	}
}

// slotOf is the slot of a key whose hash tag is all that is between its first braces.
func slotOf(key string) uint16 {
	if _, rest, ok := strings.Cut(key, "{"); ok {
		if tag, _, ok := strings.Cut(rest, "}"); ok && tag != "" {
			key = tag
		}
	}
	return crc16(key) % 16384
}

// crc16 is Redis Cluster's: XMODEM, polynomial 0x1021.
func crc16(text string) (crc uint16) {
	for _, b := range []byte(text) {
		crc ^= uint16(b) << 8
		for range 8 {
			carry := crc&0x8000 != 0
			if crc <<= 1; carry {
				crc ^= 0x1021
			}
		}
	}
	return crc
}

// slotTags has for each slot the least number whose text hashes to it.
var slotTags = sync.OnceValue(func() (tags [16384]string) {
	for i, missing := 0, len(tags); missing > 0; i++ {
		text := strconv.Itoa(i)
		if at := crc16(text) % uint16(len(tags)); tags[at] == "" {
			tags[at] = text
			missing--
		}
	}
	return tags
})

func slotTag(slot uint16) string { return slotTags()[slot] }
