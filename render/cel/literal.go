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

// Literal returns the entries of an expression that is a map literal whose keys are
// constant strings.
func Literal(text string) (entries []Entry, ok bool) {
	if len(text) > maxLength {
		return nil, false
	}
	env, err := base()
	if err != nil {
		return nil, false
	}
	tree, issues := env.Parse(text)
	if issues.Err() != nil || tree.NativeRep().Expr().Kind() != ast.MapKind {
		return nil, false
	}
	for _, e := range tree.NativeRep().Expr().AsMap().Entries() {
		entry := e.AsMapEntry()
		if entry.IsOptional() || entry.Key().Kind() != ast.LiteralKind {
			return nil, false
		}
		name, isText := entry.Key().AsLiteral().(types.String)
		value, err := parser.Unparse(entry.Value(), tree.NativeRep().SourceInfo())
		if !isText || err != nil {
			return nil, false
		}
		entries = append(entries, Entry{string(name), value})
	}
	return entries, len(entries) > 0
}

// Quoted returns an expression whose map literals have quotes around keys that are
// bare names, {name: key} as {"name": key}; ok is false if there are none.
func Quoted(text string) (quoted string, ok bool) {
	env, err := base()
	if err != nil || len(text) > maxLength {
		return "", false
	}
	tree, issues := env.Parse(text)
	if issues.Err() != nil || tree.NativeRep().Expr().Kind() != ast.MapKind {
		return "", false
	}
	var parts []string
	for _, e := range tree.NativeRep().Expr().AsMap().Entries() {
		entry := e.AsMapEntry()
		value, err := parser.Unparse(entry.Value(), tree.NativeRep().SourceInfo())
		if err != nil || entry.Key().Kind() != ast.IdentKind {
			return "", false
		}
		parts = append(parts, fmt.Sprintf("%q: %s", entry.Key().AsIdent(), value))
	}
	return "{" + strings.Join(parts, ", ") + "}", len(parts) > 0
}
