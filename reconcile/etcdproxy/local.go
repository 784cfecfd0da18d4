package etcdproxy

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc/metadata"

	"gitopsd.dev/reconcile/etcdproxy/member"
)

// localUpstream makes calls to an etcd in the same process, as the tenant's user. Both walls stand: what
// is called is rewritten as ever, and etcd asks whether the user may. What it does not make goes by
// grpc-go, over a connection in memory.
type localUpstream struct {
	member *member.Member
	creds  *upstreamCreds

	mu      sync.Mutex
	client  *member.Client // nil if there was no login yet
	version int            // of the certificates that it logged in with
	after   time.Time      // when to try again
}

// invoke makes a call, or reports that it did not. What is to be sent again is; see [resends].
func (l *localUpstream) invoke(ctx context.Context, method string, in, got *frame, most int) (made bool, err error) {
	md, _ := metadata.FromOutgoingContext(ctx)
	needsLeader := len(md) > 0 // no more than that is ever in it
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

// login returns the client of the current certificates; nil if etcd does not take them.
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
