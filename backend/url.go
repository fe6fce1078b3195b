package backend

import (
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"
)

func parseURL(s string) (*url.URL, error) {
	if s == "" {
		return nil, errors.New("the address of the store is empty")
	}
	scheme, rest, found := strings.Cut(s, "://")
	scheme = strings.ToLower(scheme) // or S3://bucket would be a directory
	if !found || !isScheme(scheme) {
		abs, err := filepath.Abs(s)
		if err != nil {
			return nil, fmt.Errorf("the directory %q: %w", s, err)
		}
		return &url.URL{Scheme: "file", Path: filepath.ToSlash(abs)}, nil
	}
	if scheme == "file" {
		// Everything after file:// is the path, to the letter unless it holds
		// percent escapes: directory names with "?" or "#" are common enough.
		p, err := url.PathUnescape(rest)
		if err != nil {
			p = rest
		}
		p = strings.TrimPrefix(p, "localhost")
		if !strings.HasPrefix(p, "/") {
			return nil, fmt.Errorf("%q names no absolute directory; write file:///dir or just the directory", s)
		}
		return &url.URL{Scheme: "file", Path: p}, nil
	}
	u, err := url.Parse(s)
	if err != nil || splitPassword(rest) {
		// The error itself would quote parts of the URL, which may hold secrets.
		return nil, fmt.Errorf("%q is no URL: in names and passwords, write / as %%2F, %% as %%25, : as %%3A, @ as %%40", Redact(s))
	}
	if u.Host == "" {
		return nil, fmt.Errorf("%q names no bucket; write %s://bucket/prefix", Redact(s), scheme)
	}
	if u.Fragment != "" {
		return nil, fmt.Errorf("%q has a fragment (#…), which means nothing here", Redact(s))
	}
	return u, nil
}

func isScheme(s string) bool {
	if len(s) < 2 { // a drive letter is no scheme
		return false
	}
	for i := range len(s) {
		c := s[i]
		if !(c >= 'a' && c <= 'z' || i > 0 && (c >= '0' && c <= '9' || c == '+' || c == '-' || c == '.')) {
			return false
		}
	}
	return true
}
