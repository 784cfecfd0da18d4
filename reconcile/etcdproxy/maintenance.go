package etcdproxy

import (
	"fmt"
	"strings"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"gitopsd.dev/reconcile/etcdproxy/wire"
)

// member is the ID of the one member that a tenant sees: the proxy.
const member = 1

// status serves Maintenance.Status: the version and the state of the member of etcd that
// answers, and the size and the quota of the namespace.
func (c *call) status() error {
	var notes wire.Notes
	in, err := c.receive(wire.StatusRequest, &notes)
	if err != nil {
		return err
	}
	defer in.discard()
	leave, err := c.enter(&notes)
	if err != nil {
		return err
	}
	var up etcdserverpb.StatusResponse
	err = c.exchange(c.method, &etcdserverpb.StatusRequest{}, &up)
	if err == nil {
		err = c.answer(c.statusOf(&up))
	}
	leave.Leave(Outcome{Err: err})
	return err
}

// statusOf returns the tenant's view of a member's status. The index of the log is that of a
// revision: it would tell of others' leases and reads.
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
	full := usage.Full
	for _, e := range up.Errors {
		full = full || strings.Contains(e, "NOSPACE") // of etcd itself: nobody can write
	}
	if full {
		out.Errors = append(out.Errors, fmt.Sprintf("memberID:%d alarm:NOSPACE ", up.GetHeader().GetMemberId()))
	}
	return out
}

// alarms serves Maintenance.Alarm: whether the namespace's quota is used up. Raising and clearing
// alarms is for etcd's operators.
func (c *call) alarms() error {
	var notes wire.Notes
	in, err := c.receive(wire.AlarmRequest, &notes)
	if err != nil {
		return err
	}
	defer in.discard()
	if notes.Action != int64(etcdserverpb.AlarmRequest_GET) {
		return status.Error(codes.PermissionDenied, "gitopsd: tenants of a shared etcd can get alarms, not raise or clear them")
	}
	leave, err := c.enter(&notes)
	if err != nil {
		return err
	}
	head, err := c.head()
	leave.Leave(Outcome{Err: err})
	if err != nil {
		return err
	}
	out := &etcdserverpb.AlarmResponse{Header: head}
	if c.cfg.Gate.Usage(c.tenant.id).Full {
		out.Alarms = append(out.Alarms, &etcdserverpb.AlarmMember{MemberID: head.GetMemberId(), Alarm: etcdserverpb.AlarmType_NOSPACE})
	}
	return c.answer(out)
}

// memberList serves Cluster.MemberList: the proxy is the one member.
func (c *call) memberList() error {
	var notes wire.Notes
	in, err := c.receive(wire.MemberListRequest, &notes)
	if err != nil {
		return err
	}
	in.discard()
	url := c.cfg.ClientURL
	if url == "" {
		url = "https://" + strings.Join(c.values(":authority"), "")
	}
	return c.answer(&etcdserverpb.MemberListResponse{
		Header:  &etcdserverpb.ResponseHeader{ClusterId: member, MemberId: member},
		Members: []*etcdserverpb.Member{{ID: member, Name: "gitopsd", ClientURLs: []string{url}}},
	})
}
