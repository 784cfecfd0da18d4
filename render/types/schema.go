package types

// schema writes a JSON schema with the keywords of JSONSchemaProps in
// apiextensions.k8s.io/v1. Like the API server when it stores a schema, it leaves out
// null, unknown keywords, and false and empty values that mean the same as an absent
// keyword.
func schema(c *canon, v any) error {
	if v == nil { // a null element decodes to an empty schema
		c.buf = append(c.buf, "{}"...)
		return nil
	}
	m, ok := v.(map[string]any)
	if !ok {
		return want("a schema", v)
	}
	start := len(c.buf)
	from, to := c.sortedKeys(m)
	for i := from; i < to; i++ {
		k := c.keys[i]
		if v := m[k]; v != nil {
			if err := c.keyword(start, k, v); err != nil {
				return at(k, err)
			}
		}
	}
	c.keys = c.keys[:from]
	c.closeObject(start)
	return nil
}

// keyword writes one keyword of the schema whose brace is at start.
func (c *canon) keyword(start int, k string, v any) error {
	switch k {
	case "type", "format", "pattern", "x-kubernetes-list-type", "x-kubernetes-map-type":
		return c.stringField(start, k, v)
	case "nullable", "exclusiveMaximum", "exclusiveMinimum", "uniqueItems", "x-kubernetes-preserve-unknown-fields",
		"x-kubernetes-embedded-resource", "x-kubernetes-int-or-string":
		return c.boolField(start, k, v)
	case "maxLength", "minLength", "maxItems", "minItems", "maxProperties", "minProperties":
		return c.integerField(start, k, v)
	case "maximum", "minimum", "multipleOf":
		c.key(start, k)
		switch v := v.(type) {
		case int64:
			return c.float(float64(v)) // the API server's type of these fields
		case float64:
			return c.float(v)
		}
		return want("a number", v)
	case "default":
		c.key(start, k)
		return c.data(v)
	case "enum":
		return c.setField(start, k, v, true, (*canon).data)
	case "required", "x-kubernetes-list-map-keys":
		return c.setField(start, k, v, true, stringElement)
	case "allOf", "anyOf", "oneOf":
		// Equal elements stay: oneOf refuses a value that matches both.
		return c.setField(start, k, v, false, schema)
	case "x-kubernetes-validations":
		return c.setField(start, k, v, false, rule)
	case "properties":
		return c.propertiesField(start, k, v)
	case "not":
		c.key(start, k)
		return schema(c, v)
	case "items":
		switch v := v.(type) {
		case map[string]any:
			c.key(start, k)
			return schema(c, v)
		case []any:
			return c.refusedField(start, k, v)
		}
		return nil // the API server treats a scalar as absent
	case "additionalProperties":
		c.key(start, k)
		if _, ok := v.(bool); ok {
			return c.data(v)
		}
		return schema(c, v)
	case "id", "$schema", "$ref", "patternProperties", "dependencies", "additionalItems", "definitions":
		return c.refusedField(start, k, v)
	}
	// description, title, example and externalDocs are documentation; the API server
	// does not know other keywords.
	return nil
}

// refusedField writes a keyword that the API server knows and refuses, so that accepted
// and refused schemas never have the same form.
func (c *canon) refusedField(start int, k string, v any) error {
	switch v := v.(type) {
	case string:
		if v == "" {
			return nil
		}
	case map[string]any:
		if len(v) == 0 {
			return nil
		}
	case []any:
		if len(v) == 0 {
			return nil
		}
	}
	c.key(start, k)
	return c.data(v)
}

// rule writes one rule of x-kubernetes-validations, with its messages, which the API
// server returns to clients.
func rule(c *canon, v any) error {
	m, ok := v.(map[string]any)
	if !ok {
		return want("a validation rule", v)
	}
	start := len(c.buf)
	for _, k := range [...]string{"fieldPath", "message", "messageExpression", "optionalOldSelf", "reason", "rule"} {
		v := m[k]
		if v == nil {
			continue
		}
		field := c.stringField
		if k == "optionalOldSelf" {
			field = c.boolField
		}
		if err := field(start, k, v); err != nil {
			return at(k, err)
		}
	}
	c.closeObject(start)
	return nil
}

func stringElement(c *canon, v any) error {
	s, ok := v.(string)
	if !ok {
		return want("a string", v)
	}
	c.str(s)
	return nil
}

// The functions below write a field unless its value means the same as an absent field.

func (c *canon) stringField(start int, k string, v any) error {
	s, ok := v.(string)
	if !ok {
		return want("a string", v)
	}
	if s != "" {
		c.key(start, k)
		c.str(s)
	}
	return nil
}

func (c *canon) boolField(start int, k string, v any) error {
	b, ok := v.(bool)
	if !ok {
		return want("a boolean", v)
	}
	if b {
		c.key(start, k)
		c.buf = append(c.buf, "true"...)
	}
	return nil
}

// integerField writes an integer, also zero: for the API server, zero differs from
// absent.
func (c *canon) integerField(start int, k string, v any) error {
	c.key(start, k)
	switch v := v.(type) {
	case int64:
		c.integer(v)
		return nil
	case float64:
		if i := int64(v); float64(i) == v {
			c.integer(i)
			return nil
		}
		return &fieldError{what: "want an integer, have a fraction"}
	}
	return want("an integer", v)
}

func (c *canon) setField(start int, k string, v any, unique bool, element func(*canon, any) error) error {
	list, ok := v.([]any)
	if !ok {
		return want("a list", v)
	}
	if len(list) == 0 {
		return nil
	}
	c.key(start, k)
	return c.set(list, unique, element)
}

// propertiesField writes a mapping from property names to schemas.
func (c *canon) propertiesField(start int, k string, v any) error {
	m, ok := v.(map[string]any)
	if !ok {
		return want("a mapping", v)
	}
	if len(m) == 0 {
		return nil
	}
	c.key(start, k)
	inner := len(c.buf)
	from, to := c.sortedKeys(m)
	for i := from; i < to; i++ {
		name := c.keys[i]
		c.key(inner, name)
		if err := schema(c, m[name]); err != nil {
			return at(name, err)
		}
	}
	c.keys = c.keys[:from]
	c.closeObject(inner)
	return nil
}
