package webhook_test

import (
	"context"
	"crypto/hmac"
	"crypto/sha1"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/url"
	"testing"

	"github.com/onlyonce/onlyonce/webhook"
	"github.com/onlyonce/onlyonce/webhook/graph"
	"github.com/onlyonce/onlyonce/webhook/meta"
	"github.com/onlyonce/onlyonce/webhook/paypal"
	"github.com/onlyonce/onlyonce/webhook/sns"
	"github.com/onlyonce/onlyonce/webhook/twilio"
)

// docs/guide/webhooks.md shows this code; package test/docs compares them.

// senders are configurations of endpoints; each endpoint adds a Name.
func senders(authToken, appSecret, verifyToken, clientState string) []webhook.Config {
	return []webhook.Config{
		// Twilio signs the public URL, which no request says reliably.
		{Provider: twilio.Provider{URL: "https://hooks.example.com/twilio"}, Secrets: []string{authToken}},
		// Meta asks by GET whether the endpoint is yours; the endpoint answers.
		{Provider: meta.Provider{VerifyToken: verifyToken}, Secrets: []string{appSecret}},
		// Microsoft Graph asks by POST, and then sends your clientState with each notification.
		{Provider: graph.Provider{}, Secrets: []string{clientState}},
		// PayPal and SNS sign with a certificate, which is fetched and kept. There is no secret.
		{Provider: paypal.Provider{WebhookID: "4JH86294D6297924G"}},
		{Provider: sns.Provider{Topics: []string{"arn:aws:sns:eu-west-1:123456789012:orders"}}},
	}
}

func Example_twilio() {
	const token = "2c9f0a7be1d34c5f8a6b7c8d9e0f1a2b"
	v, err := webhook.NewVerifier(webhook.Config{
		Provider: twilio.Provider{URL: "https://hooks.example.com/twilio"},
		Secrets:  []string{token},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	// What Twilio signs: the URL, and each parameter's name and value in order of the names.
	mac := hmac.New(sha1.New, []byte(token))
	mac.Write([]byte("https://hooks.example.com/twilio?shop=7" + "MessageSidSM1" + "MessageStatusdelivered"))
	header := http.Header{}
	header.Set("Content-Type", "application/x-www-form-urlencoded")
	header.Set("X-Twilio-Signature", base64.StdEncoding.EncodeToString(mac.Sum(nil)))

	for _, body := range []string{"MessageSid=SM1&MessageStatus=delivered", "MessageSid=SM1&MessageStatus=failed"} {
		event, err := v.VerifyRequest(context.Background(), webhook.Request{Header: header, Query: "shop=7", Body: []byte(body)})
		if err != nil {
			fmt.Println(err)
			continue
		}
		form, _ := url.ParseQuery(string(event.Body))
		fmt.Println(form.Get("MessageSid"), form.Get("MessageStatus"))
	}
	// Output:
	// SM1 delivered
	// webhook: twilio: bad signature
}

func Example_meta() {
	v, err := webhook.NewVerifier(webhook.Config{
		Provider: meta.Provider{VerifyToken: "hQ7tB2nXw9pLr4Zc"},
		Secrets:  []string{"e0b3d1bb44d6a1d2c9f8"},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	// An Endpoint answers the handshake by itself.
	for _, token := range []string{"hQ7tB2nXw9pLr4Zc", "guessed"} {
		text, is, err := v.Handshake(http.MethodGet, "hub.mode=subscribe&hub.challenge=1158201444&hub.verify_token="+token)
		fmt.Println(text, is, err)
	}
	// Output:
	// 1158201444 true <nil>
	//  false webhook: meta: bad signature: hub.verify_token
}

func Example_graph() {
	v, err := webhook.NewVerifier(webhook.Config{Provider: graph.Provider{}, Secrets: []string{"9f2c7a51-clientState"}})
	if err != nil {
		fmt.Println(err)
		return
	}
	text, is, err := v.Handshake(http.MethodPost, "validationToken=Validation%3A+7d6a3b2c")
	fmt.Println(text, is, err)
	for _, state := range []string{"9f2c7a51-clientState", "guessed"} {
		event, err := v.Verify(nil, []byte(`{"value":[{"subscriptionId":"1","clientState":"`+state+`","changeType":"created"}]}`))
		if err != nil {
			fmt.Println(err)
			continue
		}
		fmt.Println(event.Type)
	}
	// Output:
	// Validation: 7d6a3b2c true <nil>
	// created
	// webhook: microsoft-graph: bad signature
}

func Example_sns() {
	v, err := webhook.NewVerifier(webhook.Config{
		Provider: sns.Provider{Topics: []string{"arn:aws:sns:eu-west-1:123456789012:orders"}, Version2Only: true},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	// A message of another topic, however well it is signed. Nothing is fetched for it.
	header := http.Header{}
	header.Set("X-Amz-Sns-Message-Type", "Notification")
	_, err = v.Verify(header, []byte(`{
		"Type": "Notification", "MessageId": "22b80b92", "TopicArn": "arn:aws:sns:eu-west-1:999999999999:orders", "Message": "Hello",
		"Timestamp": "2026-05-02T00:54:06.655Z", "SignatureVersion": "2", "Signature": "AAAA",
		"SigningCertURL": "https://sns.eu-west-1.amazonaws.com/SimpleNotificationService-1.pem"}`))
	fmt.Println(err)
	// Output:
	// webhook: sns: bad signature: body's member TopicArn: is none of Topics
}

func Example_paypal() {
	v, err := webhook.NewVerifier(webhook.Config{Provider: paypal.Provider{WebhookID: "4JH86294D6297924G"}})
	if err != nil {
		fmt.Println(err)
		return
	}
	// A certificate from elsewhere. Nothing is fetched.
	header := http.Header{}
	header.Set("Paypal-Transmission-Id", "dfb3be50-fd74-11e4-8bf3-77339302725b")
	header.Set("Paypal-Transmission-Time", "2026-05-18T15:45:13Z")
	header.Set("Paypal-Auth-Algo", "SHA256withRSA")
	header.Set("Paypal-Transmission-Sig", "AAAA")
	header.Set("Paypal-Cert-Url", "https://api.paypal.com.example/v1/notifications/certs/CERT-1")
	_, err = v.Verify(header, []byte(`{"id":"WH-1","event_type":"PAYMENT.SALE.COMPLETED"}`))
	fmt.Println(err)
	// Output:
	// webhook: paypal: malformed: Paypal-Cert-Url: is not an address of the sender's certificates
}

// The guide's configurations are valid.
func TestGuideSenders(t *testing.T) {
	t.Parallel()
	for _, cfg := range senders("2c9f0a7be1d34c5f8a6b7c8d9e0f1a2b", "e0b3d1bb44d6a1d2c9f8", metaToken, clientState) {
		if _, err := webhook.NewVerifier(cfg); err != nil {
			t.Error(err)
		}
	}
}
