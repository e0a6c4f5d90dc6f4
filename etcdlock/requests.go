package etcdlock

import (
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
)

// The parts of a transaction, in etcd's own messages.

func compare(key string, target pb.Compare_CompareTarget, result pb.Compare_CompareResult) *pb.Compare {
	return &pb.Compare{Key: []byte(key), Target: target, Result: result}
}

// createdAt holds iff the key exists and was created by that revision; for 0, iff it does
// not exist.
func createdAt(key string, rev int64) *pb.Compare {
	c := compare(key, pb.Compare_CREATE, pb.Compare_EQUAL)
	c.TargetUnion = &pb.Compare_CreateRevision{CreateRevision: rev}
	return c
}

// contains holds iff the key exists with exactly this value.
func contains(key string, value []byte) *pb.Compare {
	c := compare(key, pb.Compare_VALUE, pb.Compare_EQUAL)
	c.TargetUnion = &pb.Compare_Value{Value: value}
	return c
}

// modifiedAt holds iff the key's last change was made by that revision; for 0, iff it
// does not exist.
func modifiedAt(key string, rev int64) *pb.Compare {
	c := compare(key, pb.Compare_MOD, pb.Compare_EQUAL)
	c.TargetUnion = &pb.Compare_ModRevision{ModRevision: rev}
	return c
}

// noneSince holds iff no key of the range was created after that revision.
func noneSince(s span, rev int64) *pb.Compare {
	c := createdAt(s.from, rev+1)
	c.Result, c.RangeEnd = pb.Compare_LESS, []byte(s.to)
	return c
}

// unleased holds iff no key of the range has a lease, that is, iff it has no entries.
func unleased(s span) *pb.Compare {
	c := compare(s.from, pb.Compare_LEASE, pb.Compare_EQUAL)
	c.RangeEnd = []byte(s.to)
	c.TargetUnion = &pb.Compare_Lease{}
	return c
}

func get(key string) *pb.RequestOp { return read(&pb.RangeRequest{Key: []byte(key)}) }

func read(r *pb.RangeRequest) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: r}}
}

// byAge reads a range in the order of creation, at most limit keys of it (0: all).
func byAge(s span, order pb.RangeRequest_SortOrder, limit int64) *pb.RangeRequest {
	return &pb.RangeRequest{
		Key: []byte(s.from), RangeEnd: []byte(s.to), Limit: limit,
		SortTarget: pb.RangeRequest_CREATE, SortOrder: order,
	}
}

func put(key string, value []byte, lease int64) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestPut{
		RequestPut: &pb.PutRequest{Key: []byte(key), Value: value, Lease: lease},
	}}
}

func remove(key string) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{
		RequestDeleteRange: &pb.DeleteRangeRequest{Key: []byte(key)},
	}}
}

// found is the range that an operation of a transaction has read.
func found(resp *pb.TxnResponse, i int) *pb.RangeResponse {
	return resp.Responses[i].GetResponseRange()
}

// only is the one key of a single-key read, or nil.
func only(r *pb.RangeResponse) *mvccpb.KeyValue {
	if len(r.GetKvs()) == 0 {
		return nil
	}
	return r.Kvs[0]
}
