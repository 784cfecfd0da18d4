package sources

import (
	"bufio"
	"bytes"
	"fmt"
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

	lines int // number of lines that have ended
	stray int // the first line that begins with another mark; 0 for none
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
	if m.stray == 0 && m.lines > 0 && !m.part && bytes.HasPrefix(m.line, []byte(byteOrderMark)) {
		m.stray = m.lines + 1
	}
	m.next = !m.part && string(bytes.TrimRight(m.line, " \t\r\n")) == "---"
	if m.part = m.err == bufio.ErrBufferFull; m.part {
		m.err = nil
	} else {
		m.lines++
	}
}

// aboutMark is an error about a line that begins with a byte order mark.
func aboutMark(line int) error {
	return fmt.Errorf("line %d: begins with a byte order mark (U+FEFF), which is invisible and belongs at the beginning of a document: remove it", line)
}
