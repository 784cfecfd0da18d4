package sources

import (
	"bufio"
	"bytes"
)

// byteOrderMark begins files of some editors.
const byteOrderMark = "\ufeff"

// markless leaves out the byte order mark of each document after the first, as kubectl and
// kustomize do: files that begin with one are joined with lines of "---". The parser leaves out
// the first document's.
type markless struct {
	r    *bufio.Reader
	line []byte // what is left of a line; valid until r is read
	part bool   // line had no end
	next bool   // a document begins after line
	err  error  // after line
}

func (m *markless) Read(p []byte) (n int, err error) {
	for n < len(p) {
		if len(m.line) == 0 {
			if m.err != nil {
				return n, m.err
			}
			m.readLine()
		}
		copied := copy(p[n:], m.line)
		m.line = m.line[copied:]
		n += copied
	}
	return n, nil
}

func (m *markless) readLine() {
	if m.next {
		if mark, _ := m.r.Peek(len(byteOrderMark)); string(mark) == byteOrderMark {
			m.r.Discard(len(byteOrderMark))
		}
	}
	m.line, m.err = m.r.ReadSlice('\n')
	m.next = !m.part && string(bytes.TrimRight(m.line, " \t\r\n")) == "---"
	if m.part = m.err == bufio.ErrBufferFull; m.part {
		m.err = nil
	}
}
