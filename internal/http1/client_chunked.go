package http1

import (
	"bytes"
	"errors"
	"io"
	"math"
)

const (
	// maxChunkOverhead bounds the framing in excess of 16 bytes per chunk plus two per byte of
	// data. Only useless chunk extensions exceed this bound.
	maxChunkOverhead = 4 << 10
	maxTrailer       = 4 << 10
)

var (
	errChunk          = errors.New("the chunked coding is malformed")
	errChunkOverhead  = errors.New("the chunked coding is mostly framing")
	errTrailerTooLong = errors.New("the trailer is too long")
)

// A chunkDecoder decodes chunked coding in place, from pieces of any size. The zero value is ready
// for use. The states follow the grammar of RFC 9112, section 7.1:
//
//	sizeStart → size → (pad | extension) → sizeLF → data → dataCR → dataLF → sizeStart
//	                                              ↘ lastCR → lastLF → end
//	                                                  ↘ trailer → end
type chunkDecoder struct {
	state    chunkState
	digits   int8
	size     uint64 // of the chunk; in chunkData, of the rest
	overhead int
	trailer  []byte // the fields after the last chunk, with the empty line after them
}

type chunkState uint8

const (
	chunkSizeStart chunkState = iota
	chunkSize
	chunkPad
	chunkExtension
	chunkSizeLF
	chunkData
	chunkDataCR
	chunkDataLF
	chunkLastCR
	chunkLastLF
	chunkTrailer
	chunkEnd
)

// decodeChunks moves the data in p to the front of p and returns the length of the data. used is
// the length of the part of p belonging to the body: all of p, unless the error is io.EOF, the end
// of the body.
func (d *chunkDecoder) decodeChunks(p []byte) (n, used int, err error) {
	for used < len(p) {
		if d.state == chunkData {
			k := int(min(d.size, uint64(len(p)-used)))
			n += copy(p[n:], p[used:used+k])
			used += k
			if d.size -= uint64(k); d.size == 0 {
				d.state = chunkDataCR
			}
			continue
		}
		if err := d.stepByte(p[used]); err != nil {
			return n, used, err
		}
		used++
		if d.state == chunkEnd {
			return n, used, io.EOF
		}
	}
	return n, used, nil
}

// stepByte consumes one byte of framing.
func (d *chunkDecoder) stepByte(b byte) error {
	switch d.state {
	case chunkSizeStart, chunkSize, chunkPad, chunkExtension:
		return d.stepSize(b)
	case chunkSizeLF:
		return d.stepSizeLF(b)
	case chunkDataCR:
		return d.expectByte(b, '\r', chunkDataLF)
	case chunkDataLF:
		return d.expectByte(b, '\n', chunkSizeStart)
	case chunkLastCR:
		if b == '\r' {
			d.state = chunkLastLF
			return nil
		}
		d.state = chunkTrailer
		return d.stepTrailer(b)
	case chunkLastLF:
		return d.expectByte(b, '\n', chunkEnd)
	case chunkTrailer:
		return d.stepTrailer(b)
	default:
		panic("BUG: no framing is due")
	}
}

func (d *chunkDecoder) expectByte(b, want byte, next chunkState) error {
	if b != want {
		return errChunk
	}
	d.state = next
	return nil
}

// stepSize consumes a byte of the line with the size of a chunk.
func (d *chunkDecoder) stepSize(b byte) error {
	if d.overhead++; d.overhead > maxChunkOverhead {
		return errChunkOverhead
	}
	digit, hex := unhex(b)
	switch {
	case d.state == chunkSizeStart && !hex:
		return errChunk
	case d.state <= chunkSize && hex:
		d.state = chunkSize
		if d.digits++; d.digits > 16 || d.size > math.MaxInt64>>4 {
			return errChunk
		}
		d.size = d.size<<4 | uint64(digit)
	case b == '\r':
		d.state = chunkSizeLF
	case d.state == chunkExtension && b != '\n', d.state == chunkSize && b == ';':
		d.state = chunkExtension
	case d.state <= chunkPad && (b == ' ' || b == '\t'):
		d.state = chunkPad
	default:
		return errChunk
	}
	return nil
}

func (d *chunkDecoder) stepSizeLF(b byte) error {
	if b != '\n' {
		return errChunk
	}
	d.overhead = max(0, d.overhead+1-16-2*int(min(d.size, maxChunkOverhead)))
	d.digits = 0
	d.state = chunkData
	if d.size == 0 {
		d.state = chunkLastCR
	}
	return nil
}

func (d *chunkDecoder) stepTrailer(b byte) error {
	if d.trailer = append(d.trailer, b); len(d.trailer) > maxTrailer {
		return errTrailerTooLong
	}
	if b == '\n' && bytes.HasSuffix(d.trailer, []byte("\r\n\r\n")) {
		d.state = chunkEnd
	}
	return nil
}

func unhex(b byte) (digit byte, ok bool) {
	switch {
	case '0' <= b && b <= '9':
		return b - '0', true
	case 'a' <= b|0x20 && b|0x20 <= 'f':
		return b | 0x20 - 'a' + 10, true
	default:
		return 0, false
	}
}
