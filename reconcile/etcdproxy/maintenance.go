package etcdproxy

import (
	"fmt"
	"slices"
	"strings"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"gitopsd.dev/reconcile/etcdproxy/wire"
)

// memberID is the ID of the one member that a tenant sees: the proxy.
const memberID = 1

// status serves Maintenance.Status: the version and state of the member of etcd that answers, and the size and
// quota of the namespace.
func (c *call) status() error {
	return c.own(wire.StatusRequest, func(*wire.Notes) (proto.Message, error) {
		var up etcdserverpb.StatusResponse
		if err := c.exchange(c.method, &etcdserverpb.StatusRequest{}, &up); err != nil {
			return nil, err
		}
		return c.statusOf(&up), nil
	})
}

// statusOf returns the tenant's view of a member's status. The revision stands for the index of the log, which
// would reveal others' leases and reads.
func (c *call) statusOf(up *etcdserverpb.StatusResponse) *etcdserverpb.StatusResponse {
	usage := c.cfg.Gate.Usage(c.tenant.id)
	revision := uint64(max(up.GetHeader().GetRevision(), 0))
	out := &etcdserverpb.StatusResponse{
		Header:  up.Header,
		Version: up.Version, StorageVersion: up.StorageVersion,
		DbSize: usage.Bytes, DbSizeInUse: usage.Bytes, DbSizeQuota: c.tenant.quota.Load(),
		RaftTerm: up.RaftTerm, RaftIndex: revision, RaftAppliedIndex: revision,
		DowngradeInfo: &etcdserverpb.DowngradeInfo{},
	}
	if up.Leader != 0 {
		out.Leader = up.GetHeader().GetMemberId()
	} else {
		out.Errors = append(out.Errors, rpctypes.ErrorDesc(rpctypes.ErrGRPCNoLeader))
	}
	if usage.Full || slices.ContainsFunc(up.Errors, func(e string) bool { return strings.Contains(e, "NOSPACE") }) {
		out.Errors = append(out.Errors, fmt.Sprintf("memberID:%d alarm:NOSPACE ", up.GetHeader().GetMemberId()))
	}
	return out
}

// alarms serves Maintenance.Alarm: there is an alarm if the namespace's quota is used up. Only operators of
// etcd raise and clear alarms.
func (c *call) alarms() error {
	return c.own(wire.AlarmRequest, func(notes *wire.Notes) (proto.Message, error) {
		if notes.Action != int64(etcdserverpb.AlarmRequest_GET) {
			return nil, status.Error(codes.PermissionDenied, "gitopsd: tenants of a shared etcd can get alarms, not raise or clear them")
		}
		head, err := c.head()
		if err != nil {
			return nil, err
		}
		out := &etcdserverpb.AlarmResponse{Header: head}
		if c.cfg.Gate.Usage(c.tenant.id).Full {
			out.Alarms = append(out.Alarms, &etcdserverpb.AlarmMember{MemberID: head.GetMemberId(), Alarm: etcdserverpb.AlarmType_NOSPACE})
		}
		return out, nil
	})
}

// memberList serves Cluster.MemberList: the proxy is the only member, at the host and port that the client
// asked for.
func (c *call) memberList() error {
	var notes wire.Notes
	in, err := c.receive(wire.MemberListRequest, &notes)
	if err != nil {
		return err
	}
	in.discard()
	url := "https://" + strings.Join(c.values(":authority"), "")
	return c.answer(&etcdserverpb.MemberListResponse{
		Header:  &etcdserverpb.ResponseHeader{ClusterId: memberID, MemberId: memberID},
		Members: []*etcdserverpb.Member{{ID: memberID, Name: "gitopsd", ClientURLs: []string{url}}},
	})
}
