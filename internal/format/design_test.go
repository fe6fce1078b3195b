package format

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// design/format.md is the specification: what it shows and counts is compared
// with the code.
func readDesign(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("../../design/format.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// fenced returns the text of a block of code.
func fenced(t *testing.T, page, name string) string {
	t.Helper()
	_, rest, ok := strings.Cut(page, "```"+name+"\n")
	text, _, ok2 := strings.Cut(rest, "```")
	if !ok || !ok2 {
		t.Fatalf("format.md has no block %q", name)
	}
	return text
}

// The record of the page, byte for byte: what the page shows, what is kept, and
// what this program writes and reads.
func TestRecordOfTheDesignIsReal(t *testing.T) {
	golden := filepath.Join("testdata", "record.golden")
	encoded := mustEncode(t, EncodeRecord, sampleInline())
	if *update {
		if err := os.WriteFile(golden, encoded, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	kept, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(encoded, kept) {
		t.Errorf("a record is encoded to other bytes than before:\ngot\n%swant\n%s", hex.Dump(encoded), hex.Dump(kept))
	}
	line := regexp.MustCompile(`^([0-9a-f]{4})  ((?:[0-9a-f]{2} )*[0-9a-f]{2})(?:   .*)?$`)
	var shown []byte
	for text := range strings.Lines(fenced(t, readDesign(t), "hex")) {
		m := line.FindStringSubmatch(strings.TrimRight(text, " \n"))
		if m == nil {
			t.Fatalf("not a line of a dump: %q", text)
		}
		if at, _ := strconv.ParseUint(m[1], 16, 16); int(at) != len(shown) {
			t.Errorf("line %q lies at %04x", text, len(shown))
		}
		b, err := hex.DecodeString(strings.ReplaceAll(m[2], " ", ""))
		if err != nil {
			t.Fatal(err)
		}
		shown = append(shown, b...)
	}
	if !bytes.Equal(shown, kept) {
		t.Errorf("format.md shows\n%sshould be\n%s", hex.Dump(shown), hex.Dump(kept))
	}
	r, err := DecodeRecord(shown)
	if err != nil {
		t.Fatal(err)
	}
	want := sampleInline()
	want.ContentsAt = 0x130
	if !reflect.DeepEqual(r, want) {
		t.Errorf("got %+v, want %+v", r, want)
	}
}

// The digest is what the page says, put together by hand.
func TestDigestOfTheDesignIsReal(t *testing.T) {
	e := sampleInline().Entries[0]
	record := mustEncode(t, EncodeRecord, sampleInline())
	var input []byte
	input = append(input, "swampd entry 3\x00\x09say hello"...)
	input = append(input, 0x0a, 0x11f-0xe2)
	input = append(input, record[0xe2:0x11f]...) // the put without its place
	input = append(input, 0x0a, 0x130-0x125)
	input = append(input, record[0x125:0x130]...)
	if got := Hash(sha256.Sum256(input)); got != e.Digest {
		t.Errorf("by hand %x, by the code %x", got, e.Digest)
	}
}

func TestJSONOfTheDesignIsReal(t *testing.T) {
	page := readDesign(t)
	if got, want := fenced(t, page, "json format marker"), string(mustEncode(t, EncodeMarker, sampleMarker())); got != want {
		t.Errorf("format.md shows %s, should be %s", got, want)
	}
	c := sampleCheckpoint()
	c.Extra = nil
	if got, want := fenced(t, page, "json checkpoint record"), string(mustEncode(t, EncodeCheckpoint, c)); got != want {
		t.Errorf("format.md shows %s, should be %s", got, want)
	}
}

func TestLimitsOfTheDesignAreReal(t *testing.T) {
	limits := map[string]int{"MaxPath": MaxPath, "MaxMessage": MaxMessage, "MaxMeta": MaxMeta, "MaxWriter": MaxWriter, "MaxBody": MaxBody,
		"MaxRecordBody": MaxRecordBody, "MaxFooterBody": MaxFooterBody, "MaxRecord": MaxRecord, "MaxInline": MaxInline,
		"MaxChangesHere": MaxChangesHere, "MaxEntries": MaxEntries, "MaxLists": MaxLists, "MaxListItems": MaxListItems,
		"MaxFooterChanges": MaxFooterChanges, "BlockSize": BlockSize, "MaxBlocks": MaxBlocks, "MaxSmall": MaxSmall,
		"MaxFooter": MaxFooter, "MaxShards": MaxShards, "MaxShardItems": MaxShardItems, "MaxControl": MaxControl}
	row := regexp.MustCompile("(?m)^\\| `(\\w+)` \\| ([0-9,]+) \\|")
	for _, m := range row.FindAllStringSubmatch(readDesign(t), -1) {
		want, ok := limits[m[1]]
		if got, _ := strconv.Atoi(strings.ReplaceAll(m[2], ",", "")); !ok || got != want {
			t.Errorf("format.md says %s is %s, it is %d", m[1], m[2], want)
		}
		delete(limits, m[1])
	}
	if len(limits) > 0 {
		t.Errorf("format.md does not say %v", limits)
	}
}

// Each message of the page has the fields that the code knows, and each name
// of a type is one.
func TestFieldsOfTheDesignAreReal(t *testing.T) {
	messages := map[string]int{"Record": recordFields, "Entry": entryFields, "Block": blockFields, "Object": objectFields,
		"ListRef": listRefFields, "Change": changeFields, "Meta": metaFields, "Tag": 2, "Place": placeFields,
		"VersionRef": versionRefFields, "Move": moveFields, "Footer": footerFields, "Root": rootFields, "ShardRef": shardRefFields,
		"Shard": shardFields, "VersionRow": versionRowFields, "ObjectRow": objectRowFields, "LogRow": logRowFields,
		"LogEntry": logEntryFields}
	known := map[string]bool{"uint": true, "size": true, "time": true, "uuid": true, "hash": true, "text": true, "bytes": true}
	for name := range messages {
		known[name] = true
	}
	sections := regexp.MustCompile(`(?m)^### `).Split(readDesign(t), -1)[1:]
	row := regexp.MustCompile(`(?m)^\| (\d+) \| (\w+)(?:\[\])? \| (\w+)`)
	for _, section := range sections {
		name, text, _ := strings.Cut(section, "\n")
		text, _, _ = strings.Cut(text, "\n## ")
		fields, ok := messages[name]
		if !ok {
			t.Errorf("format.md has a message %s that is not known", name)
		}
		delete(messages, name)
		rows := row.FindAllStringSubmatch(text, -1)
		if len(rows) != fields {
			t.Errorf("%s has %d fields in format.md, %d in the code", name, len(rows), fields)
		}
		for i, m := range rows {
			if m[1] != strconv.Itoa(i+1) || !known[m[2]] {
				t.Errorf("%s: row %d is field %s of type %s", name, i+1, m[1], m[2])
			}
		}
	}
	if len(messages) > 0 {
		t.Errorf("format.md does not describe %v", messages)
	}
}

// The highest field that an encoder writes is the one that decoders take as the
// last known one: samples have every field of every message.
func TestSamplesHaveEveryField(t *testing.T) {
	body, _ := appendRecord(nil, sampleFull())
	for name, c := range map[string]struct {
		body   []byte
		fields int
	}{
		"record": {body, recordFields},
		"entry":  {entryBody(&sampleFull().Entries[0]), entryFields},
		"block":  {appendBlock(nil, sampleList()), blockFields},
		"root":   {appendRoot(nil, sampleRoot()), rootFields},
	} {
		seen := make(map[string]bool)
		for _, f := range splitFields(t, c.body) {
			seen[strconv.Itoa(int(f[0]>>3))] = true
		}
		for n := 1; n <= c.fields; n++ {
			if !seen[strconv.Itoa(n)] {
				t.Errorf("the sample of a %s has no field %d", name, n)
			}
		}
	}
}

func entryBody(e *Entry) []byte {
	b, _ := appendEntry(nil, e)
	return b
}
