package h2

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// TestHeadersAgain sends repeated headers among others that change the table. They are read as sent, and as the
// framer of HTTP/2 reads them.
func TestHeadersAgain(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	var wire bytes.Buffer
	w := newWriter(&wire)
	lists := []*fixed{startOK, endOK}
	for i := range 6 {
		lists = append(lists, &fixed{{Name: ":status", Value: "200"}, {Name: "content-type", Value: grpcType}, {Name: "method", Value: fmt.Sprint(i)}})
	}
	var want [][]hpack.HeaderField
	const rounds = 5000
	for i := range rounds {
		var fields *fixed
		var more []hpack.HeaderField
		if random.IntN(8) > 0 {
			fields = lists[min(random.IntN(2*len(lists)), len(lists)-1)]
		}
		if random.IntN(3) == 0 {
			more = append(more, hpack.HeaderField{Name: "grpc-timeout", Value: fmt.Sprint(random.IntN(1000), "m"), Sensitive: true})
		}
		if random.IntN(20) == 0 { // evicts others
			more = append(more, hpack.HeaderField{Name: fmt.Sprint("x-", random.IntN(50)), Value: fmt.Sprintf("%0*d", random.IntN(300), i)})
		}
		if random.IntN(200) == 0 {
			w.tableSize(uint32(random.IntN(3) * 1024))
		}
		if fields != nil {
			want = append(want, slices.Concat(*fields, more))
		} else if len(more) > 0 {
			want = append(want, more)
		} else {
			continue
		}
		w.lock(nil)
		w.headers(uint32(2*i+1), random.IntN(2) == 0, fields, more...)
		if random.IntN(2) == 0 {
			w.data(uint32(2*i+1), false, nil, []byte("data"))
		}
		w.flush()
	}
	framer := http2.NewFramer(nil, bytes.NewReader(wire.Bytes()))
	framer.ReadMetaHeaders = hpack.NewDecoder(4<<10, nil)
	r := newReader(bytes.NewReader(wire.Bytes()), readBuffer, Options{}.withDefaults())
	known := 0
	for len(want) > 0 {
		theirs, err := framer.ReadFrame()
		if err != nil {
			t.Fatal(err)
		}
		ours, err := r.read()
		if err != nil {
			t.Fatal(err)
		}
		if theirs.Header().StreamID != ours.Header().StreamID || theirs.Header().Flags != ours.Header().Flags || theirs.Header().Length != ours.Header().Length {
			t.Fatalf("%v, not %v", ours.Header(), theirs.Header())
		}
		is, ok := ours.(*http2.MetaHeadersFrame)
		if !ok {
			continue
		}
		if is == &r.meta {
			known++
		}
		if got := theirs.(*http2.MetaHeadersFrame).Fields; !slices.Equal(is.Fields, got) || !slices.Equal(is.Fields, want[0]) {
			t.Fatalf("read %v, and by the framer %v; sent was %v", is.Fields, got, want[0])
		}
		want = want[1:]
	}
	if known < rounds/10 {
		t.Errorf("only %d of %d were known", known, rounds)
	}
}
