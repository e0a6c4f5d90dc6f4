package etcdlock

import (
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// An answer that lacks a part is an error, and no panic: also that to one of several requests which
// were sent together.
func TestAnswerThatLacksAPart(t *testing.T) {
	t.Parallel()
	one := &pb.TxnRequest{Success: []*pb.RequestOp{get("a")}, Failure: []*pb.RequestOp{get("a"), get("b")}}
	both := nested([]*combined{{name: "a", request: one}, {name: "b", request: one}})
	parts := func(n int) (all []*pb.ResponseOp) {
		for range n {
			all = append(all, &pb.ResponseOp{Response: &pb.ResponseOp_ResponseRange{ResponseRange: &pb.RangeResponse{}}})
		}
		return all
	}
	inner := func(succeeded bool, n int) *pb.ResponseOp {
		return &pb.ResponseOp{Response: &pb.ResponseOp_ResponseTxn{ResponseTxn: &pb.TxnResponse{Succeeded: succeeded, Responses: parts(n)}}}
	}
	for name, c := range map[string]struct {
		asked    *pb.TxnRequest
		answered *pb.TxnResponse
		want     bool
	}{
		"succeeded":             {one, &pb.TxnResponse{Succeeded: true, Responses: parts(1)}, true},
		"failed":                {one, &pb.TxnResponse{Responses: parts(2)}, true},
		"of the other branch":   {one, &pb.TxnResponse{Responses: parts(1)}, false},
		"none":                  {one, &pb.TxnResponse{Succeeded: true}, false},
		"two together":          {both, &pb.TxnResponse{Succeeded: true, Responses: []*pb.ResponseOp{inner(true, 1), inner(false, 2)}}, true},
		"one of two":            {both, &pb.TxnResponse{Succeeded: true, Responses: []*pb.ResponseOp{inner(true, 1)}}, false},
		"one of two is another": {both, &pb.TxnResponse{Succeeded: true, Responses: append(parts(1), inner(false, 2))}, false},
		"a part of one of two":  {both, &pb.TxnResponse{Succeeded: true, Responses: []*pb.ResponseOp{inner(true, 1), inner(false, 1)}}, false},
	} {
		if got := answers(c.answered, c.asked); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
