package s3

import (
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/swampd/swampd/backend"
)

// ParseURL reads s3://bucket/prefix?endpoint=&region=&path_style=&profile=.
func ParseURL(u *url.URL) (Options, error) {
	if u.Scheme != "s3" || u.Host == "" {
		return Options{}, fmt.Errorf("%q names no bucket; write s3://bucket/prefix", u.Redacted())
	}
	if u.User != nil {
		return Options{}, fmt.Errorf("the store's URL holds credentials, which show in lists of processes and logs; " +
			"set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile, instead")
	}
	if u.Port() != "" {
		return Options{}, fmt.Errorf("%q is not the name of a bucket; the address of a store that is not Amazon's goes into ?endpoint=", u.Host)
	}
	opts := Options{Bucket: u.Host, Prefix: u.Path}
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return Options{}, fmt.Errorf("what follows the ? in the store's URL: %w", err)
	}
	for k, v := range query {
		if len(v) != 1 {
			return Options{}, fmt.Errorf("%s is given %d times in the store's URL", k, len(v))
		}
		switch k {
		case "endpoint":
			opts.Endpoint = v[0]
		case "region":
			opts.Region = v[0]
		case "profile":
			opts.Profile = v[0]
		case "path_style":
			if opts.PathStyle, err = parsePathStyle(v[0]); err != nil {
				return Options{}, err
			}
		default:
			return Options{}, fmt.Errorf("%q is not known in an s3:// URL; known are endpoint, region, path_style and profile", k)
		}
	}
	return opts, nil
}

func parsePathStyle(v string) (PathStyle, error) {
	if v == "" {
		return PathStyleAuto, nil
	}
	on, err := strconv.ParseBool(v)
	if err != nil {
		return 0, fmt.Errorf("path_style is true or false, not %q", v)
	}
	if on {
		return PathStyleOn, nil
	}
	return PathStyleOff, nil
}

// checkPrefix refuses what stores, proxies and tools take for something else.
func checkPrefix(prefix string) error {
	if prefix == "" {
		return nil
	}
	if n := maxStoreKey - backend.MaxKey - 1; len(prefix) > n {
		return fmt.Errorf("the prefix has %d bytes, %d are possible", len(prefix), n)
	}
	if !utf8.ValidString(prefix) {
		return fmt.Errorf("the prefix %q is not valid UTF-8", prefix)
	}
	for _, r := range prefix {
		if r < 0x20 || r == 0x7f {
			return fmt.Errorf("the prefix %q holds a control character", prefix)
		}
	}
	for seg := range strings.SplitSeq(prefix, "/") {
		if seg == "" || seg == "." || seg == ".." {
			return fmt.Errorf("the prefix %q holds the segment %q", prefix, seg)
		}
	}
	return nil
}
