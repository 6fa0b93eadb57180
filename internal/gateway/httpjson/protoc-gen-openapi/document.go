package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"google.golang.org/protobuf/compiler/protogen"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/pluginpb"

	"github.com/kvoracle/kvoracle/internal/gateway/httpjson/paths"
)

const supported = uint64(pluginpb.CodeGeneratorResponse_FEATURE_PROTO3_OPTIONAL)

// object is a JSON object; its members are written in the order of their names.
type object = map[string]any

// writer gathers what the document refers to.
type writer struct {
	methods map[string]*protogen.Method
	schemas object
}

// document is the whole text.
func document(plugin *protogen.Plugin) (string, error) {
	w := &writer{methods: make(map[string]*protogen.Method), schemas: object{"google.rpc.Status": status()}}
	for _, f := range plugin.Files {
		for _, s := range f.Services {
			for _, m := range s.Methods {
				w.methods[fmt.Sprintf("/%s/%s", s.Desc.FullName(), m.Desc.Name())] = m
			}
		}
	}
	all := make(object)
	for _, p := range paths.Paths() {
		op, err := w.operation(&p)
		if err != nil {
			return "", err
		}
		item, ok := all[p.Pattern].(object)
		if !ok {
			item = make(object)
			all[p.Pattern] = item
		}
		item[strings.ToLower(p.Verb)] = op
	}
	return text(object{
		"openapi": "3.1.0",
		"info": object{
			"title":   "kvoracle",
			"version": "v1",
			"description": "The unary calls of kvoracle.v1 as HTTP and JSON: the same messages as protojson writes them, the same " +
				"checks, the same errors (google.rpc.Status). Names are those of the proto files; lowerCamelCase is read too. " +
				"64-bit integers are written as strings and read as either. Streams are served over gRPC only.",
			"license": object{"name": "Apache-2.0", "identifier": "Apache-2.0"},
		},
		"paths":      all,
		"components": object{"schemas": w.schemas},
	})
}

func text(doc object) (string, error) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", " ")
	err := enc.Encode(doc)
	return buf.String(), err
}

// operation describes one row.
func (w *writer) operation(p *paths.Path) (object, error) {
	m := w.methods[p.Method]
	if m == nil {
		return nil, fmt.Errorf("%s %s: there is no method %s", p.Verb, p.Pattern, p.Method)
	}
	var params []any
	for _, where := range []struct {
		in    string
		names []string
	}{{"path", p.Fields()}, {"query", p.Query}} {
		for _, name := range where.names {
			f := fieldNamed(m.Input, name)
			if f == nil {
				return nil, fmt.Errorf("%s %s: %s has no field %s", p.Verb, p.Pattern, m.Input.Desc.FullName(), name)
			}
			params = append(params, object{
				"name": name, "in": where.in, "required": where.in == "path",
				"description": prose(f.Comments), "schema": object{"type": "string"},
			})
		}
	}
	op := object{
		"operationId": m.GoName,
		"description": prose(m.Comments),
		"responses": object{
			"200":     object{"description": "Done.", "content": content(w.ref(m.Output))},
			"default": object{"description": "Refused; the HTTP status follows from the code.", "content": content(ref("google.rpc.Status"))},
		},
	}
	if len(params) > 0 {
		op["parameters"] = params
	}
	if p.HasBody {
		op["requestBody"] = object{"content": content(w.ref(m.Input))}
	}
	return op, nil
}

func fieldNamed(m *protogen.Message, name string) *protogen.Field {
	for _, f := range m.Fields {
		if string(f.Desc.Name()) == name {
			return f
		}
	}
	return nil
}

func content(schema object) object {
	return object{"application/json": object{"schema": schema}}
}

func ref(name string) object { return object{"$ref": "#/components/schemas/" + name} }

// ref refers to a message, which is described if it was not yet.
func (w *writer) ref(m *protogen.Message) object {
	name := string(m.Desc.FullName())
	switch name {
	case "google.protobuf.Timestamp":
		return object{"type": "string", "format": "date-time"}
	case "google.protobuf.Duration":
		return object{"type": "string", "description": "Seconds, ending in s."}
	}
	if _, ok := w.schemas[name]; !ok {
		schema := object{"type": "object", "description": prose(m.Comments)}
		w.schemas[name] = schema // before its fields: messages may hold themselves
		props := make(object)
		for _, f := range m.Fields {
			props[string(f.Desc.Name())] = w.field(f)
		}
		if len(props) > 0 {
			schema["properties"] = props
		}
	}
	return ref(name)
}

// packedArrays are the fields that the door also reads as base64 of little-endian integers.
func packedArray(f *protogen.Field) bool {
	switch f.Desc.FullName() {
	case "kvoracle.v1.TokenPrompt.token_ids", "kvoracle.v1.BlockHashPrompt.local_hashes":
		return true
	}
	return false
}

func (w *writer) field(f *protogen.Field) object {
	var schema object
	switch {
	case f.Desc.IsMap():
		schema = object{"type": "object", "additionalProperties": w.value(f.Message.Fields[1])}
	case f.Desc.IsList():
		schema = object{"type": "array", "items": w.value(f)}
	default:
		schema = w.value(f)
	}
	if packedArray(f) {
		schema = object{"oneOf": []any{schema, object{
			"type": "string", "contentEncoding": "base64", "description": "The array's little-endian bytes as they lie in memory.",
		}}}
	}
	about := prose(f.Comments)
	if o := f.Oneof; o != nil && !o.Desc.IsSynthetic() {
		about += fmt.Sprintf(" One of %s.", o.Desc.Name())
	}
	if _, isRef := schema["$ref"]; isRef { // 3.1 allows company
		return object{"$ref": schema["$ref"], "description": about}
	}
	schema["description"] = about
	return schema
}

// value is one value of a field.
func (w *writer) value(f *protogen.Field) object {
	switch f.Desc.Kind() {
	case protoreflect.BoolKind:
		return object{"type": "boolean"}
	case protoreflect.StringKind:
		return object{"type": "string"}
	case protoreflect.BytesKind:
		return object{"type": "string", "contentEncoding": "base64"}
	case protoreflect.EnumKind:
		return w.enum(f.Enum)
	case protoreflect.MessageKind, protoreflect.GroupKind:
		return w.ref(f.Message)
	case protoreflect.DoubleKind, protoreflect.FloatKind:
		return object{"type": "number"}
	case protoreflect.Int32Kind, protoreflect.Sint32Kind, protoreflect.Sfixed32Kind:
		return object{"type": "integer", "format": "int32"}
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		return object{"type": "integer", "minimum": 0, "maximum": 1<<32 - 1}
	case protoreflect.Int64Kind, protoreflect.Sint64Kind, protoreflect.Sfixed64Kind:
		return object{"type": []any{"string", "integer"}, "format": "int64"}
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		return object{"type": []any{"string", "integer"}, "format": "uint64"}
	}
	return object{}
}

func (w *writer) enum(e *protogen.Enum) object {
	name := string(e.Desc.FullName())
	if _, ok := w.schemas[name]; !ok {
		var values []any
		var about strings.Builder
		about.WriteString(prose(e.Comments))
		for _, v := range e.Values {
			values = append(values, string(v.Desc.Name()))
			about.WriteString(fmt.Sprintf("\n\n%s: %s", v.Desc.Name(), prose(v.Comments)))
		}
		w.schemas[name] = object{"type": "string", "enum": values, "description": about.String()}
	}
	return ref(name)
}

// prose is a leading comment as one paragraph for each of its own.
func prose(c protogen.CommentSet) string {
	var out []string
	for par := range strings.SplitSeq(strings.TrimSpace(string(c.Leading)), "\n\n") {
		out = append(out, strings.Join(strings.Fields(par), " "))
	}
	return strings.Join(out, "\n\n")
}

// status describes what errors are: google.rpc.Status.
func status() object {
	return object{
		"type":        "object",
		"description": "google.rpc.Status.",
		"properties": object{
			"code":    object{"type": "integer", "description": "A google.rpc.Code."},
			"message": object{"type": "string", "description": "For people, in English."},
			"details": object{
				"type": "array", "description": "google.rpc.ErrorInfo (domain kvoracle, a stable reason), BadRequest, PreconditionFailure, RetryInfo.",
				"items": object{
					"type": "object", "properties": object{"@type": object{"type": "string"}}, "additionalProperties": true,
				},
			},
		},
	}
}
