package remoting

import "strconv"

// Request codes, named as RocketMQ names them. Which of them a server answers is up to its handler.
const (
	SendMessage                      int32 = 10
	PullMessage                      int32 = 11
	QueryMessage                     int32 = 12
	QueryConsumerOffset              int32 = 14
	UpdateConsumerOffset             int32 = 15
	UpdateAndCreateTopic             int32 = 17
	UpdateAndCreateTopicList         int32 = 18
	GetAllTopicConfig                int32 = 21
	UpdateBrokerConfig               int32 = 25
	GetBrokerConfig                  int32 = 26
	GetBrokerRuntimeInfo             int32 = 28
	SearchOffsetByTimestamp          int32 = 29
	GetMaxOffset                     int32 = 30
	GetMinOffset                     int32 = 31
	GetEarliestMsgStoreTime          int32 = 32
	ViewMessageByID                  int32 = 33
	HeartBeat                        int32 = 34
	UnregisterClient                 int32 = 35
	ConsumerSendMsgBack              int32 = 36
	EndTransaction                   int32 = 37
	GetConsumerListByGroup           int32 = 38
	CheckTransactionState            int32 = 39
	NotifyConsumerIDsChanged         int32 = 40
	LockBatchMQ                      int32 = 41
	UnlockBatchMQ                    int32 = 42
	GetAllConsumerOffset             int32 = 43
	CheckClientConfig                int32 = 46
	PutKVConfig                      int32 = 100
	GetKVConfig                      int32 = 101
	DeleteKVConfig                   int32 = 102
	RegisterBroker                   int32 = 103
	UnregisterBroker                 int32 = 104
	GetRouteInfoByTopic              int32 = 105
	GetBrokerClusterInfo             int32 = 106
	UpdateAndCreateSubscriptionGroup int32 = 200
	GetAllSubscriptionGroupConfig    int32 = 201
	GetTopicStatsInfo                int32 = 202
	GetConsumerConnectionList        int32 = 203
	GetProducerConnectionList        int32 = 204
	WipeWritePermOfBroker            int32 = 205
	GetAllTopicListFromNameserver    int32 = 206
	DeleteSubscriptionGroup          int32 = 207
	GetConsumeStats                  int32 = 208
	DeleteTopicInBroker              int32 = 215
	DeleteTopicInNamesrv             int32 = 216
	RegisterTopicInNamesrv           int32 = 217
	ResetConsumerClientOffset        int32 = 220
	GetConsumerStatusFromClient      int32 = 221
	InvokeBrokerToResetOffset        int32 = 222
	QueryTopicConsumeByWho           int32 = 300
	GetConsumerRunningInfo           int32 = 307
	ConsumeMessageDirectly           int32 = 309
	SendMessageV2                    int32 = 310
	SendBatchMessage                 int32 = 320
	QueryDataVersion                 int32 = 322
	SendReplyMessage                 int32 = 324
	SendReplyMessageV2               int32 = 325
	PushReplyMessageToClient         int32 = 326
	GetTopicConfig                   int32 = 351
	GetSubscriptionGroupConfig       int32 = 352
	LitePullMessage                  int32 = 361
	RecallMessage                    int32 = 370
	QueryAssignment                  int32 = 400
	SetMessageRequestMode            int32 = 401
	GetBrokerMemberGroup             int32 = 901
	BrokerHeartbeat                  int32 = 904
	NotifyMinBrokerIDChange          int32 = 905
	PopMessage                       int32 = 200050
	AckMessage                       int32 = 200051
	PeekMessage                      int32 = 200052
	ChangeMessageInvisibleTime       int32 = 200053
	Notification                     int32 = 200054
	BatchAckMessage                  int32 = 200151

	// GetControllers is our own: a name server answers with the fields clusterID and controllers.
	GetControllers int32 = 31001
)

// Response codes. They stay below 32768, so that both codecs carry them.
const (
	Success                    int32 = 0
	SystemError                int32 = 1
	SystemBusy                 int32 = 2
	RequestCodeNotSupported    int32 = 3
	TransactionFailed          int32 = 4
	FlushDiskTimeout           int32 = 10
	SlaveNotAvailable          int32 = 11
	FlushSlaveTimeout          int32 = 12
	MessageIllegal             int32 = 13
	ServiceNotAvailable        int32 = 14
	VersionNotSupported        int32 = 15
	NoPermission               int32 = 16
	TopicNotExist              int32 = 17
	TopicExistAlready          int32 = 18
	PullNotFound               int32 = 19
	PullRetryImmediately       int32 = 20
	PullOffsetMoved            int32 = 21
	QueryNotFound              int32 = 22
	SubscriptionParseFailed    int32 = 23
	SubscriptionNotExist       int32 = 24
	SubscriptionNotLatest      int32 = 25
	SubscriptionGroupNotExist  int32 = 26
	FilterDataNotExist         int32 = 27
	FilterDataNotLatest        int32 = 28
	InvalidParameter           int32 = 29
	ConsumerNotOnline          int32 = 206
	ConsumeMsgTimeout          int32 = 207
	NoMessage                  int32 = 208
	PollingFull                int32 = 209
	PollingTimeout             int32 = 210
	BrokerNotExist             int32 = 211
	BrokerDispatchNotCompleted int32 = 212
	BroadcastConsumption       int32 = 213
	FlowControl                int32 = 215
	IllegalOperation           int32 = 604
	GoAway                     int32 = 1500
)

// Remarks of SYSTEM_BUSY answers begin with this, so that stock clients know an overload.
const busyRemark = "[REJECTREQUEST]"

var requestNames = map[int32]string{
	SendMessage: "SEND_MESSAGE", PullMessage: "PULL_MESSAGE", QueryMessage: "QUERY_MESSAGE",
	QueryConsumerOffset: "QUERY_CONSUMER_OFFSET", UpdateConsumerOffset: "UPDATE_CONSUMER_OFFSET",
	UpdateAndCreateTopic: "UPDATE_AND_CREATE_TOPIC", GetBrokerRuntimeInfo: "GET_BROKER_RUNTIME_INFO",
	SearchOffsetByTimestamp: "SEARCH_OFFSET_BY_TIMESTAMP", GetMaxOffset: "GET_MAX_OFFSET", GetMinOffset: "GET_MIN_OFFSET",
	GetEarliestMsgStoreTime: "GET_EARLIEST_MSG_STORETIME", ViewMessageByID: "VIEW_MESSAGE_BY_ID", HeartBeat: "HEART_BEAT",
	UnregisterClient: "UNREGISTER_CLIENT", ConsumerSendMsgBack: "CONSUMER_SEND_MSG_BACK", EndTransaction: "END_TRANSACTION",
	GetConsumerListByGroup: "GET_CONSUMER_LIST_BY_GROUP", NotifyConsumerIDsChanged: "NOTIFY_CONSUMER_IDS_CHANGED",
	LockBatchMQ: "LOCK_BATCH_MQ", UnlockBatchMQ: "UNLOCK_BATCH_MQ", CheckClientConfig: "CHECK_CLIENT_CONFIG",
	RegisterBroker: "REGISTER_BROKER", UnregisterBroker: "UNREGISTER_BROKER", GetRouteInfoByTopic: "GET_ROUTEINFO_BY_TOPIC",
	GetBrokerClusterInfo: "GET_BROKER_CLUSTER_INFO", UpdateAndCreateSubscriptionGroup: "UPDATE_AND_CREATE_SUBSCRIPTIONGROUP",
	GetAllTopicListFromNameserver: "GET_ALL_TOPIC_LIST_FROM_NAMESERVER", DeleteTopicInBroker: "DELETE_TOPIC_IN_BROKER",
	DeleteTopicInNamesrv: "DELETE_TOPIC_IN_NAMESRV", SendMessageV2: "SEND_MESSAGE_V2", SendBatchMessage: "SEND_BATCH_MESSAGE",
	QueryDataVersion: "QUERY_DATA_VERSION", LitePullMessage: "LITE_PULL_MESSAGE", BrokerHeartbeat: "BROKER_HEARTBEAT",
	GetControllers: "GET_CONTROLLERS",
}

// RequestName returns RocketMQ's name of a request code, or its number when this package has no name for it. For metrics
// use it only with codes that a handler knows: a stranger can send any number.
func RequestName(code int32) string {
	if n, ok := requestNames[code]; ok {
		return n
	}
	return strconv.Itoa(int(code))
}
