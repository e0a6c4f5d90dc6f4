package etcdlock

import (
	"reflect"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/hasplock/hasp/driver"
)

// What is written of an entry is read again.
func TestEncode(t *testing.T) {
	t.Parallel()
	for _, want := range []driver.Request{
		{ID: "8kq3-1f", Units: 1, Capacity: driver.Whole, Owner: `{"user":"u","host":"h","pid":7,"program":"p"}`, Since: time.Date(2026, 11, 24, 1, 2, 3, 4000, time.UTC)},
		{ID: `a"b\\`, Units: 3, Capacity: 5, Owner: "ä\x00\u2028<&>", Value: []byte{0, 1, 2, 255}},
		{ID: "x", Units: 1, Capacity: 2},
	} {
		want.Name = "name"
		q := (&Backend{prefix: DefaultPrefix}).queue(want.Name)
		e, ok := q.entry(&mvccpb.KeyValue{Key: []byte(q.keyPrefix(&want) + "7-0"), Value: encode(&want), Lease: 7})
		if !ok || !reflect.DeepEqual(e.Request, want) {
			t.Errorf("%s is read as %+v, %t; want %+v", encode(&want), e.Request, ok, want)
		}
	}
}
