package etcdproxy

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc/metadata"

	"gitopsd.dev/reconcile/etcdproxy/member"
)

// localUpstream makes calls to an etcd in the same process, as the tenant's user. Both walls stand: calls
// are rewritten, and etcd checks the user's rights. Calls that it does not make go through grpc-go, over a
// connection in memory.
type localUpstream struct {
	member *member.Member
	creds  *upstreamCreds

	mu      sync.Mutex
	client  *member.Client // nil before a successful login
	version int            // of the certificates of the last login
	after   time.Time      // when to try a failed login again
}

// invoke makes a call, or reports that it did not. It resends; see [resends].
func (l *localUpstream) invoke(ctx context.Context, method string, in, got *frame, most int) (made bool, err error) {
	md, _ := metadata.FromOutgoingContext(ctx)
	needsLeader := len(md) > 0 // set by outgoing
	for try := 0; ; try++ {
		client := l.login(ctx)
		if client == nil {
			return false, nil
		}
		got.buf, made, err = client.Call(ctx, method, needsLeader, in.bytes(), most, pool)
		if !made || !again(ctx, err, try) {
			return made, err
		}
	}
}

// login returns a client with the current certificates; nil if etcd does not accept them.
func (l *localUpstream) login(ctx context.Context) *member.Client {
	l.mu.Lock()
	defer l.mu.Unlock()
	now, version, name := l.creds.current()
	if l.client != nil && l.version == version {
		return l.client
	}
	if l.version == version && time.Now().Before(l.after) {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), minConnect)
	defer cancel()
	client, err := l.member.Login(ctx, name, now.credentials())
	l.client, l.version, l.after = client, version, time.Now().Add(reconnect.MaxDelay)
	if err != nil {
		l.client = nil
	}
	return l.client
}
