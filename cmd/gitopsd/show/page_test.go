package show

import (
	"strings"
	"testing"
)

// A page has the colours of a text, and whatever else is in the text is shown.
func TestPage(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	text := NewText(&b, Options{Colour: true})
	text.Say(Red, `<script>alert("1")</script> & </pre>`)
	text.Heading("", "name", "\x1b]8;;javascript:x\x07link")
	text.Say(Plain, `<b class="green">`)
	if err := text.Flush(); err != nil {
		t.Fatal(err)
	}
	page := Page("</title><script>", b.String())
	for _, want := range []string{
		"<title>&lt;/title&gt;&lt;script&gt;</title>",
		`<pre><b class="red">&lt;script&gt;alert(&#34;1&#34;)&lt;/script&gt; &amp; &lt;/pre&gt;</b>` + "\n",
		"<b>name</b>: ]8;;javascript:xlink\n",
		"&lt;b class=&#34;green&#34;&gt;\n</pre>",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page has no %s:\n%s", want, page)
		}
	}
	if strings.Contains(page, "<script") || strings.ContainsRune(page, '\x1b') || strings.Count(page, "<b") != strings.Count(page, "</b") {
		t.Error(page)
	}
}
