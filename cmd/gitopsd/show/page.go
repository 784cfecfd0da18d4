package show

import (
	"html"
	"strings"
)

// classes are the classes of colours in a [Page].
var classes = strings.NewReplacer(
	string(Bold), `<b>`, string(Red), `<b class="red">`, string(Green), `<b class="green">`,
	string(Yellow), `<b class="yellow">`, string(Cyan), `<b class="cyan">`, reset, `</b>`,
)

// PagePolicy is the Content-Security-Policy of a [Page]: nothing in it is loaded or run.
const PagePolicy = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// Page returns a text with colours, as a [Text] has written it, as a web page, which a browser asks
// for again every ten seconds. Whatever is in the text is shown, and means nothing to the browser.
func Page(title, text string) string {
	return `<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="refresh" content="10">
<meta name="viewport" content="width=device-width">
<title>` + html.EscapeString(Clean(title)) + `</title>
<style>
:root { color-scheme: light dark }
pre { font: 14px/1.4 ui-monospace, monospace; white-space: pre-wrap; overflow-wrap: anywhere }
.red { color: light-dark(#b3261e, #ff8a80) }
.green { color: light-dark(#1b6e20, #81c784) }
.yellow { color: light-dark(#7a5c00, #ffd54f) }
.cyan { color: light-dark(#00606b, #4dd0e1) }
b { font-weight: inherit }
b:not([class]) { font-weight: bold }
</style>
</head>
<body>
<pre>` + classes.Replace(html.EscapeString(cleanPainted(text))) + `</pre>
</body>
</html>
`
}
