package xpkg

import (
	"bytes"
	"io"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"

	"gitopsd.dev/sources"
)

// batchBytes is the size of the parts of package.yaml that are decoded at a time: large
// enough to hide the decoder's own costs, and small enough to use several processors.
const batchBytes = 512 << 10

// maxDecoders bounds the batches that are decoded at a time.
const maxDecoders = 8

// batch is a run of whole documents.
type batch struct {
	n      int // index of the batch
	line   int // of its first byte in the stream, from 1
	values int // upper bound without aliases
	bytes  []byte
}

// decode decodes a stream of documents on several processors. Its result and error are the
// same as of [sources.DecodeYAML] for the whole stream, since documents are independent.
func decode(packageYAML io.Reader, space *share) ([]sources.Document, error) {
	return decodeBatches(packageYAML, batchBytes, space)
}

func decodeBatches(packageYAML io.Reader, size int, space *share) ([]sources.Document, error) {
	decoders := min(runtime.GOMAXPROCS(0), maxDecoders)
	var (
		batches = make(chan batch, decoders)
		aliased atomic.Int64 // values behind aliases
		wg      sync.WaitGroup
		mu      sync.Mutex
		results [][]sources.Document
		failed  = -1 // the first batch with an error
		failure error
	)
	for range decoders {
		wg.Go(func() {
			var dec sources.Decoder
			for b := range batches {
				docs, err := b.decode(&dec, &aliased, space)
				mu.Lock()
				for len(results) <= b.n {
					results = append(results, nil)
				}
				results[b.n] = docs
				if err != nil && (failed < 0 || b.n < failed) {
					failed, failure = b.n, err
				}
				mu.Unlock()
			}
		})
	}
	var s splitter
	readErr := s.split(packageYAML, size, func(b batch) bool {
		batches <- b
		mu.Lock()
		defer mu.Unlock()
		return failed < 0
	})
	close(batches)
	wg.Wait()
	// Batches start in order, so all before the first failure are done.
	if failure != nil {
		return nil, failure
	}
	if readErr != nil {
		return nil, readErr
	}
	var docs []sources.Document
	for _, r := range results {
		docs = append(docs, r...)
	}
	if len(docs) > maxDocuments {
		return nil, tooMuch("%s has more than %d documents", packageFile, maxDocuments)
	}
	return docs, nil
}

func (b batch) decode(dec *sources.Decoder, aliased *atomic.Int64, space *share) (docs []sources.Document, err error) {
	values := b.values
	mayAlias := hasAlias(b.bytes)
	if mayAlias {
		values += maxDocumentValues
	}
	err = space.decode(values, len(b.bytes), func() (int64, error) {
		before := dec.Cost()
		docs, err = b.documents(dec)
		return dec.Cost() - before, err
	})
	if err != nil {
		return nil, err
	}
	expanded := 0
	for i := range docs {
		docs[i].Line += b.line - 1
		if mayAlias {
			expanded += countValues(docs[i].Tree)
		}
	}
	if more := expanded - b.values; more > 0 && aliased.Add(int64(more)) > maxPackageValues {
		return nil, tooMuch("%s: aliases stand for more than %d values", packageFile, maxPackageValues)
	}
	return docs, nil
}

// hasAlias reports whether a text has an alias, or something that looks like one. A regular
// expression would take as long as parsing it.
func hasAlias(text []byte) bool {
	for i, b := range text {
		if b != '*' || i+1 == len(text) || i > 0 && !strings.ContainsRune("\t\n\f\r [{,:-", rune(text[i-1])) {
			continue
		}
		switch c := text[i+1]; {
		case '0' <= c && c <= '9', 'A' <= c && c <= 'Z', 'a' <= c && c <= 'z', c == '_', c == '-':
			return true
		}
	}
	return false
}

func (b batch) documents(dec *sources.Decoder) ([]sources.Document, error) {
	limits := sources.Limits{Bytes: int64(len(b.bytes)), Documents: maxDocuments, Nodes: maxDocumentValues, Separators: maxDocumentValues, TotalNodes: b.values + maxDocumentValues}
	docs, err := dec.Decode(bytes.NewReader(b.bytes), limits)
	if err == nil {
		return docs, nil
	}
	// Decode again, with as many empty lines as there are lines before the batch, for
	// the right line in the error.
	limits.Bytes += int64(b.line)
	limits.Separators += b.line
	padding := io.LimitReader(newlines{}, int64(b.line-1))
	_, err = dec.Decode(io.MultiReader(padding, bytes.NewReader(b.bytes)), limits)
	if strings.HasPrefix(err.Error(), "line ") {
		return nil, malformed(packageFile+" ", err)
	}
	return nil, malformed(packageFile+": ", err)
}

// countValues returns the number of values in a tree.
func countValues(v any) int {
	n := 1
	switch v := v.(type) {
	case map[string]any:
		for _, child := range v {
			n += countValues(child)
		}
	case []any:
		for _, child := range v {
			n += countValues(child)
		}
	}
	return n
}

// newlines is an endless stream of newlines.
type newlines struct{}

func (newlines) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = '\n'
	}
	return len(p), nil
}

// split cuts a stream into batches of whole documents, of about size bytes, and
// calls use with each until that returns false. A line that starts with "---" and a blank
// always starts a document (YAML 1.2.2, section 9.1.2).
func (s *splitter) split(r io.Reader, size int, use func(batch) bool) error {
	s.next.line = 1
	buf := make([]byte, 64<<10)
	for {
		n, err := r.Read(buf)
		if s.total += n; s.total > maxPackageBytes {
			return tooMuch("%s has more than %d bytes", packageFile, maxPackageBytes)
		}
		s.pending = append(s.pending[:copy(s.pending, s.pending[s.start:])], buf[:n]...)
		s.start = 0
		for cut := s.cut(err == io.EOF); cut > 0; cut = s.cut(err == io.EOF) {
			if err := s.take(cut); err != nil {
				return err
			}
			if len(s.next.bytes) >= size && !s.flush(use) {
				return nil
			}
		}
		switch {
		case err == io.EOF:
			if err := s.take(len(s.pending) - s.start); err != nil {
				return err
			}
			s.flush(use)
			return nil
		case err != nil:
			return err
		case len(s.pending)-s.start > maxDocumentBytes:
			return s.take(len(s.pending) - s.start) // returns the error
		}
	}
}

type splitter struct {
	next    batch  // whole documents
	pending []byte // bytes read; the next document begins at start
	start   int
	seen    int // bytes from start in which no document ends
	line    int // number of lines in next
	total   int // number of bytes read
	values  int // number of values in documents taken
}

// cut returns the length of the first document in pending, or 0 if its end has
// not been read yet.
func (s *splitter) cut(last bool) int {
	doc := s.pending[s.start:]
	for {
		i := bytes.Index(doc[s.seen:], []byte("\n---"))
		if i < 0 {
			s.seen = max(s.seen, len(doc)-len("\n---")+1)
			return 0
		}
		end := s.seen + i + 1 // of the document, after its newline
		after := end + len("---")
		if after == len(doc) && !last {
			return 0
		}
		s.seen = after
		if (after == len(doc) || bytes.IndexByte([]byte(" \t\r\n"), doc[after]) >= 0) && !hasDirective(doc[:end]) {
			return end
		}
	}
}

// hasDirective reports whether the lines before a "---" are directives (%YAML), which
// belong to the next document.
func hasDirective(before []byte) bool {
	for len(before) > 0 {
		before = bytes.TrimRight(before, " \t\r\n")
		line := before[bytes.LastIndexByte(before, '\n')+1:]
		switch {
		case len(line) > 0 && line[0] == '%':
			return true
		case len(line) == 0 || bytes.TrimLeft(line, " \t")[0] != '#':
			return false
		}
		before = before[:len(before)-len(line)]
	}
	return false
}

// take moves a document, the first n bytes of pending, to the next batch.
func (s *splitter) take(n int) error {
	doc := s.pending[s.start : s.start+n]
	line := s.next.line + s.line
	if n > maxDocumentBytes {
		return tooMuch("%s line %d: a document of more than %d bytes, which no API server takes", packageFile, line, maxDocumentBytes)
	}
	lines, values := sources.CountYAML(doc)
	s.values += values
	s.next.values += values
	switch {
	case values > maxDocumentValues:
		return tooMuch("%s line %d: a document of more than %d values", packageFile, line, maxDocumentValues)
	case s.values > maxPackageValues:
		return tooMuch("%s line %d: more than %d values so far", packageFile, line, maxPackageValues)
	}
	s.next.bytes = append(s.next.bytes, doc...)
	s.line += lines
	s.start += n
	s.seen = 0
	return nil
}

// flush calls use with the next batch.
func (s *splitter) flush(use func(batch) bool) bool {
	if len(s.next.bytes) == 0 {
		return true
	}
	ok := use(s.next)
	s.next = batch{n: s.next.n + 1, line: s.next.line + s.line, bytes: make([]byte, 0, cap(s.next.bytes))}
	s.line = 0
	return ok
}
