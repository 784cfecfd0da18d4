package h2

import (
	"encoding/base64"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/status"
)

const grpcType = "application/grpc"

// request is a call as the headers of its stream describe it.
type request struct {
	fields   []hpack.HeaderField
	path     string
	subtype  string // of the content type
	encoding string
	timeout  time.Duration
	timed    bool // there is a timeout
}

// refusal is the answer to headers that begin no call: a status of HTTP and one of gRPC. If the latter
// is nil, the stream is reset.
type refusal struct {
	http   int
	status *status.Status
}

// parse parses headers. It refuses the same headers as grpc-go, with the same answers.
func parse(fields []hpack.HeaderField) (r request, no *refusal) {
	r.fields = fields
	var method, foreign string
	var authorities, hosts int
	var isGRPC, malformed bool
	var wrong error
	for _, f := range fields {
		switch f.Name {
		case "content-type":
			if subtype, ok := contentSubtype(f.Value); ok {
				r.subtype, isGRPC = subtype, true
			} else {
				foreign = f.Value
			}
		case "grpc-encoding":
			r.encoding = f.Value
		case ":method":
			method = f.Value
		case ":path":
			r.path = f.Value
		case ":authority":
			authorities++
		case "host":
			hosts++
		case "grpc-timeout":
			r.timed = true
			var err error
			if r.timeout, err = decodeTimeout(f.Value); err != nil {
				wrong = fmt.Errorf("malformed grpc-timeout: %w", err)
			}
		case "connection":
			malformed = true
		default:
			if err := checkBinary(f); err != nil {
				wrong = fmt.Errorf("malformed binary metadata %q in header %q: %w", f.Value, f.Name, err)
			}
		}
	}
	internal := func(http int, text string) (request, *refusal) {
		return r, &refusal{http, status.New(codes.Internal, text)}
	}
	switch {
	case authorities > 1 || hosts > 1:
		return internal(http.StatusBadRequest, fmt.Sprintf("num values of :authority: %v, num values of host: %v, both must only have 1 value as per HTTP/2 spec", authorities, hosts))
	case malformed:
		return r, &refusal{}
	case !isGRPC:
		return r, &refusal{http.StatusUnsupportedMediaType, status.Newf(codes.InvalidArgument, "invalid gRPC request content-type %q", foreign)}
	case wrong != nil:
		return internal(http.StatusBadRequest, wrong.Error())
	case authorities+hosts == 0:
		return internal(http.StatusBadRequest, "no host or :authority header present")
	case method != http.MethodPost:
		return internal(http.StatusMethodNotAllowed, fmt.Sprintf("Received a HEADERS frame with :method %q which should be POST", method))
	case r.timed && r.timeout <= 0:
		return r, &refusal{http.StatusOK, status.New(codes.DeadlineExceeded, "context deadline exceeded")}
	}
	return r, nil
}

// unserved returns the error for a malformed method name or an unknown encoding.
func (r *request) unserved() error {
	if path, ok := strings.CutPrefix(r.path, "/"); !ok || !strings.Contains(path, "/") {
		return status.Errorf(codes.Unimplemented, "malformed method name: %q", r.path)
	}
	if r.encoding != "" && r.encoding != encoding.Identity && encoding.GetCompressor(r.encoding) == nil {
		return status.Errorf(codes.Unimplemented, "grpc: Decompressor is not installed for grpc-encoding %q", r.encoding)
	}
	return nil
}

// compressor returns the encoding of responses; empty for none.
func (r *request) compressor() string {
	if r.encoding == encoding.Identity {
		return ""
	}
	return r.encoding
}

// contentSubtype returns the subtype of gRPC's content type, and reports whether value is one.
func contentSubtype(value string) (string, bool) {
	rest, ok := strings.CutPrefix(value, grpcType)
	switch {
	case !ok:
		return "", false
	case rest == "":
		return "", true
	}
	return rest[1:], rest[0] == '+' || rest[0] == ';'
}

func contentType(subtype string) string {
	if subtype == "" {
		return grpcType
	}
	return grpcType + "+" + subtype
}

// checkBinary returns an error for a binary header that is not base64.
func checkBinary(f hpack.HeaderField) error {
	if !strings.HasSuffix(f.Name, "-bin") {
		return nil
	}
	code := base64.RawStdEncoding
	if len(f.Value)%4 == 0 {
		code = base64.StdEncoding
	}
	_, err := code.DecodeString(f.Value)
	return err
}

// timeoutUnits are the units of timeouts, the smallest first.
var timeoutUnits = []struct {
	name   string
	length time.Duration
}{{"n", time.Nanosecond}, {"u", time.Microsecond}, {"m", time.Millisecond}, {"S", time.Second}, {"M", time.Minute}, {"H", time.Hour}}

// decodeTimeout parses a timeout: at most eight digits and a unit.
func decodeTimeout(s string) (time.Duration, error) {
	switch {
	case len(s) < 2:
		return 0, fmt.Errorf("transport: timeout string is too short: %q", s)
	case len(s) > 9:
		return 0, fmt.Errorf("transport: timeout string is too long: %q", s)
	}
	digits, name := s[:len(s)-1], s[len(s)-1:]
	var unit time.Duration
	for _, u := range timeoutUnits {
		if u.name == name {
			unit = u.length
		}
	}
	if unit == 0 {
		return 0, fmt.Errorf("transport: timeout unit is not recognized: %q", s)
	}
	n, err := strconv.ParseUint(digits, 10, 64)
	if err != nil {
		return 0, err
	}
	if n > uint64(math.MaxInt64/unit) {
		return math.MaxInt64, nil
	}
	return time.Duration(n) * unit, nil
}

// encodeTimeout formats a timeout, rounded up.
func encodeTimeout(d time.Duration) string {
	const most = 99_999_999
	for _, u := range timeoutUnits {
		n := d / u.length
		if d%u.length > 0 {
			n++
		}
		if n <= most {
			return strconv.FormatInt(int64(max(n, 0)), 10) + u.name
		}
	}
	return strconv.Itoa(most) + "H"
}

// encodeText encodes the text of a status: bytes that are not printable in percent encoding, after replacing
// invalid UTF-8.
func encodeText(s string) string {
	plain := func(c byte) bool { return c >= ' ' && c <= '~' && c != '%' }
	clean := true
	for i := range len(s) {
		clean = clean && plain(s[i])
	}
	if clean {
		return s
	}
	var b strings.Builder
	for _, c := range []byte(strings.ToValidUTF8(s, string(utf8.RuneError))) {
		if plain(c) {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}

// decodeText is the reverse of encodeText. Invalid encodings stay as they are.
func decodeText(s string) string {
	if !strings.Contains(s, "%") {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '%' && i+2 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+3], 16, 8); err == nil {
				b.WriteByte(byte(n))
				i += 2
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// statusFields returns the last headers of a response.
func statusFields(st *status.Status) []hpack.HeaderField {
	return []hpack.HeaderField{
		{Name: "grpc-status", Value: strconv.Itoa(int(st.Code()))},
		{Name: "grpc-message", Value: encodeText(st.Message())},
	}
}

// startFields returns the first headers of a response.
func startFields(http int, subtype string) []hpack.HeaderField {
	return []hpack.HeaderField{
		{Name: ":status", Value: strconv.Itoa(http)},
		{Name: "content-type", Value: contentType(subtype)},
	}
}

// startOK and endOK are the headers of most responses.
var (
	startOK = new(fixed(startFields(200, "")))
	endOK   = new(fixed(statusFields(status.New(codes.OK, ""))))
)

// statusOf returns the status in the last headers of a response.
func statusOf(fields []hpack.HeaderField) error {
	code, text := codes.Unknown, ""
	found := false
	for _, f := range fields {
		switch f.Name {
		case "grpc-status":
			n, err := strconv.ParseUint(f.Value, 10, 32)
			if err != nil {
				return status.Error(codes.Internal, "malformed grpc-status")
			}
			code, found = codes.Code(n), true
		case "grpc-message":
			text = decodeText(f.Value)
		}
	}
	switch {
	case !found:
		return status.Error(codes.Internal, "response without a grpc-status")
	case code == codes.OK:
		return nil
	}
	return status.Error(code, text)
}

// httpError returns the error for a response with an HTTP status other than 200 or another content type.
func httpError(code string) error {
	is := codes.Unknown
	switch code {
	case "200", "400":
		is = codes.Internal
	case "401":
		is = codes.Unauthenticated
	case "403":
		is = codes.PermissionDenied
	case "404":
		is = codes.Unimplemented
	case "429", "502", "503", "504":
		is = codes.Unavailable
	}
	return status.Error(is, "response is not gRPC's, with HTTP status "+code)
}

// resetError returns the error for a stream that the other side reset.
func resetError(code http2.ErrCode) error {
	is := codes.Internal
	switch code {
	case http2.ErrCodeFlowControl, http2.ErrCodeEnhanceYourCalm:
		is = codes.ResourceExhausted
	case http2.ErrCodeRefusedStream:
		is = codes.Unavailable
	case http2.ErrCodeCancel:
		is = codes.Canceled
	case http2.ErrCodeInadequateSecurity:
		is = codes.PermissionDenied
	}
	return status.Error(is, "stream terminated by RST_STREAM with error code: "+code.String())
}
