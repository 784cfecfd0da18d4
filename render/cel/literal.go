package cel

import (
	"fmt"
	"strings"

	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/parser"
)

// Entry is a key of a literal and the expression of its value.
type Entry struct{ Name, Text string }

// Literal returns the entries of a map literal; ok is false for other expressions, and if
// a key is not a constant string.
func Literal(text string) (entries []Entry, ok bool) {
	for _, e := range mapEntries(text) {
		if e.IsOptional() || e.Key().Kind() != ast.LiteralKind {
			return nil, false
		}
		name, isText := e.Key().AsLiteral().(types.String)
		if !isText {
			return nil, false
		}
		entries = append(entries, Entry{string(name), e.value})
	}
	return entries, len(entries) > 0
}

// Quoted returns a map literal with quotes around its keys: {name: key} becomes
// {"name": key}. ok is false for other expressions, and if a key is not a bare name.
func Quoted(text string) (quoted string, ok bool) {
	var parts []string
	for _, e := range mapEntries(text) {
		if e.Key().Kind() != ast.IdentKind {
			return "", false
		}
		parts = append(parts, fmt.Sprintf("%q: %s", e.Key().AsIdent(), e.value))
	}
	return "{" + strings.Join(parts, ", ") + "}", len(parts) > 0
}

// mapEntry is an entry of a map literal with the text of its value.
type mapEntry struct {
	ast.MapEntry
	value string
}

// mapEntries returns the entries of a map literal; nil for other expressions.
func mapEntries(text string) []mapEntry {
	env, err := base()
	if err != nil || len(text) > maxLength {
		return nil
	}
	tree, issues := env.Parse(text)
	if issues.Err() != nil || tree.NativeRep().Expr().Kind() != ast.MapKind {
		return nil
	}
	var all []mapEntry
	for _, e := range tree.NativeRep().Expr().AsMap().Entries() {
		entry := e.AsMapEntry()
		value, err := parser.Unparse(entry.Value(), tree.NativeRep().SourceInfo())
		if err != nil {
			return nil
		}
		all = append(all, mapEntry{entry, value})
	}
	return all
}
